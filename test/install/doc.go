// Package install tests the charts: how they render, that a real API server takes every
// render, and that what they install works.
package install
