package cli

import (
	"fmt"
	"strings"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/report"
)

// text writes an explanation for people.
func (e *explainOptions) text(x *Explanation) error {
	fmt.Fprintln(e.Out, x.Object)
	if len(x.Quotas) == 0 {
		fmt.Fprintln(e.Out, "\nno quota covers the project")
	}
	t := report.NewTable("Quota", "Key", "Charge", "Used", "Hard", "Fits", "Charged by")
	for i := range x.Quotas {
		q := &x.Quotas[i]
		for _, k := range q.Keys {
			t.Row(q.Quota, string(k.Key), k.Charge, k.Used, k.Hard, yesNo(k.Fits), strings.Join(k.Rules, "; "))
		}
		if q.Error != "" {
			t.Row(q.Quota, "-", "?", "-", "-", yesNo(q.Fits), q.Error)
		}
	}
	if t.Len() > 0 {
		fmt.Fprintln(e.Out)
	}
	if err := t.Write(e.Out, false, e.noHeaders); err != nil {
		return err
	}
	t = report.NewTable("Request", "Class", "Devices", "For example")
	for i := range x.Requests {
		r := &x.Requests[i]
		example := strings.Join(r.Devices, ", ")
		if r.Matching > len(r.Devices) {
			example += ", ..."
		}
		if r.Error != "" {
			example = r.Error
		}
		t.Row(r.Request, r.Class, fmt.Sprint(r.Matching), example)
	}
	fmt.Fprintln(e.Out)
	if err := t.Write(e.Out, false, e.noHeaders); err != nil {
		return err
	}
	switch {
	case x.Node != "":
		fmt.Fprintf(e.Out, "\nwould be allocated on node %s: %s\n", x.Node, strings.Join(x.Devices, ", "))
	case x.WhyNot != "":
		fmt.Fprintf(e.Out, "\ncannot be allocated now: %s\n", strings.ReplaceAll(x.WhyNot, "\n", "\n  "))
	default:
		fmt.Fprintf(e.Out, "\nis allocated: %s\n", strings.Join(x.Devices, ", "))
	}
	return nil
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
