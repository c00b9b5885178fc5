// Package scenario runs the scenario files of `kubectl devicequota test`: steps that change a
// cluster in memory and say what is to be expected of it. Read returns the scenarios of files,
// Run plays one.
package scenario
