package webhooks

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Reason says in one word why a request is refused or warned about. It is the type of each
// cause in a refusal's status.details.causes, the first word of each warning and a label of
// the metrics. The set is closed; docs/messages.md explains each one.
type Reason string

// The reasons.
const (
	// ReasonQuotaExceeded: what exists leaves no room for the request.
	ReasonQuotaExceeded Reason = "QuotaExceeded"
	// ReasonFootprintUnknown: a capacity, counter or selector is limited and no device tells what the request costs.
	ReasonFootprintUnknown Reason = "FootprintUnknown"
	// ReasonQuotaRequired: the class may be used only in projects with a quota for it.
	ReasonQuotaRequired Reason = "QuotaRequired"
	// ReasonAdminAccessForbidden: the requester may not ask for adminAccess.
	ReasonAdminAccessForbidden Reason = "AdminAccessForbidden"
	// ReasonInvalid: the object is wrong; the cause names the field.
	ReasonInvalid Reason = "Invalid"
	// ReasonNoMatchingDevice: no published device can ever satisfy the request.
	ReasonNoMatchingDevice Reason = "NoMatchingDevice"
	// ReasonUnenforcedKey: nothing enforces this key of the quota here.
	ReasonUnenforcedKey Reason = "UnenforcedKey"
	// ReasonAliasedKey: devices of this key can be reached past it.
	ReasonAliasedKey Reason = "AliasedKey"
	// ReasonUnknownClass: there is no DeviceClass of that name.
	ReasonUnknownClass Reason = "UnknownClass"
	// ReasonBelowUsage: the limit is lower than what is used already.
	ReasonBelowUsage Reason = "BelowUsage"
	// ReasonZeroDefault: claims that do not ask for the capacity consume nothing of this key.
	ReasonZeroDefault Reason = "ZeroDefault"
	// ReasonMutated: the object was changed as the namespace's annotations ask. Warnings only.
	ReasonMutated Reason = "Mutated"
)

// Reasons returns all reasons, in the order of docs/messages.md.
func Reasons() []Reason {
	return []Reason{ReasonQuotaExceeded, ReasonFootprintUnknown, ReasonQuotaRequired, ReasonAdminAccessForbidden,
		ReasonInvalid, ReasonNoMatchingDevice, ReasonUnenforcedKey, ReasonAliasedKey, ReasonUnknownClass,
		ReasonBelowUsage, ReasonZeroDefault, ReasonMutated}
}

// known tells whether the word is one of the reasons.
func known(r Reason) bool { return slices.Contains(Reasons(), r) }

// maxWarning is how long one warning may be, in bytes.
// Source: k8s.io/api/admission/v1 AdmissionResponse.Warnings.
const maxWarning = 120

// maxWarnings is how many warnings one text becomes at most; the API server drops warnings
// beyond 4096 bytes of all webhooks together.
const maxWarnings = 8

// warn returns the text as warnings that start with the reason and keep to maxWarning.
func warn(reason Reason, text string) []string {
	prefix := string(reason) + ": "
	room := maxWarning - len(prefix)
	var out []string
	line := ""
	flush := func() {
		if line != "" {
			out = append(out, prefix+line)
			line = ""
		}
	}
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > room {
			flush()
		}
		for len(word) > room {
			n := cut(word, room)
			line = word[:n]
			word = word[n:]
			flush()
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	flush()
	if len(out) > maxWarnings {
		out = append(out[:maxWarnings-1], prefix+"(more was cut off)")
	}
	return out
}

// cut returns the largest n <= room at which word can be cut without splitting a rune.
func cut(word string, room int) int {
	n := room
	for n > 0 && !utf8.RuneStart(word[n]) {
		n--
	}
	if n == 0 {
		return room
	}
	return n
}
