//go:build race

package ledger

// raceDetector makes every step ten times as slow: then the tiny worlds are explored in part
// only, as far as there may be races.
const raceDetector = true
