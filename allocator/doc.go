// Package allocator searches devices for ResourceClaims as the scheduler's structured
// allocator does, and explains why there are none.
package allocator
