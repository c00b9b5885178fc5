package v1alpha1

import "encoding/json"

// UnmarshalJSON reads a status. Its holds have no schema: if somebody wrote what are none, the status
// is Unreadable and has none, which is no reason not to read all other ledgers.
func (s *DeviceLedgerStatus) UnmarshalJSON(data []byte) error {
	type plain DeviceLedgerStatus
	read := struct {
		*plain
		Holds json.RawMessage `json:"holds,omitempty"`
	}{plain: (*plain)(s)}
	s.Holds, s.Unreadable = nil, false
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	if len(read.Holds) == 0 {
		return nil
	}
	if err := json.Unmarshal(read.Holds, &s.Holds); err != nil {
		s.Holds, s.Unreadable = nil, true
	}
	return nil
}
