package differential

import "testing"

func TestNeverTrueGoesByTheDriverAlone(t *testing.T) {
	for expression, want := range map[string]bool{
		`device.driver == "a"`: true,
		`device.driver == "b"`: false,
		`device.driver != "b"`: true,
		`true`:                 false,
		`false`:                true,
		`device.driver == "a" && device.attributes["a"].numa == 1`:   true,
		`device.attributes["a"].numa == 1 && device.driver == "a"`:   true,
		`device.driver == "b" && device.attributes["b"].numa == 1`:   false,
		`device.driver == "a" || device.allowMultipleAllocations`:    false,
		`device.attributes["b"].?numa.orValue(0) == 1`:               false,
		`device.capacity["b"].memory.isGreaterThan(quantity("1Gi"))`: false,
		`1 + 1`:              false,
		`device.attributes[`: false,
	} {
		if got := partiallyFalse(expression, "b"); got != want {
			t.Errorf("%s: %v, want %v", expression, got, want)
		}
	}
}
