//go:build race

package harness

// raceDetector builds managers with the race detector where the test has it.
const raceDetector = true
