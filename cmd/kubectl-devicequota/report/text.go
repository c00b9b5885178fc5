package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
	"github.com/devicequota/devicequota/quota"
)

// Table is text in columns.
type Table struct{ t metav1.Table }

// NewTable returns a table with the columns; those that begin with "+" are for wide output only.
func NewTable(columns ...string) *Table {
	t := &Table{}
	for _, c := range columns {
		n, wide := strings.CutPrefix(c, "+")
		d := metav1.TableColumnDefinition{Name: n, Type: "string"}
		if wide {
			d.Priority = 1
		}
		t.t.ColumnDefinitions = append(t.t.ColumnDefinitions, d)
	}
	return t
}

// Row adds a row with one cell per column.
func (t *Table) Row(cells ...any) {
	t.t.Rows = append(t.t.Rows, metav1.TableRow{Cells: cells})
}

// Len returns how many rows there are.
func (t *Table) Len() int { return len(t.t.Rows) }

// Write writes the table; without rows nothing.
func (t *Table) Write(w io.Writer, wide, noHeaders bool) error {
	if len(t.t.Rows) == 0 {
		return nil
	}
	var b strings.Builder
	p := printers.NewTablePrinter(printers.PrintOptions{Wide: wide, NoHeaders: noHeaders})
	if err := p.PrintObj(runtime.Object(&t.t), &b); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

func decision(i *Item) string {
	switch {
	case !i.Allowed:
		return "denied"
	case len(i.Warnings) > 0:
		return "warned"
	}
	return "admitted"
}

// text writes tables and, below them, what there is to say in sentences.
func (r *Report) text(w io.Writer, wide bool, s Style) error {
	t := NewTable("Decision", "Namespace", "Kind", "Name", "Pods", "Reason", "+Charge")
	for i := range r.Items {
		item := &r.Items[i]
		t.Row(decision(item), orNone(item.Object.Namespace), item.Object.Kind, item.Object.Name, pods(item), orNone(reason(item)), orNone(Charges(item.Charge)))
	}
	if err := t.Write(w, wide, s.NoHeaders); err != nil {
		return err
	}
	if err := r.sentences(w, s); err != nil {
		return err
	}
	if err := r.usage(w, s, t.Len() > 0); err != nil {
		return err
	}
	line := fmt.Sprintf("admitted %d, denied %d, warned %d, skipped %d", r.Summary.Admitted, r.Summary.Denied, r.Summary.Warned, r.Summary.Skipped)
	if len(r.Items)+len(r.Usage) > 0 {
		line = "\n" + line
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

func reason(i *Item) string {
	if i.Reason != "" {
		return i.Reason
	}
	if len(i.Warnings) > 0 {
		r, _, _ := strings.Cut(i.Warnings[0], ":")
		return r
	}
	if i.Allocated != nil && !*i.Allocated {
		return "Pending"
	}
	return ""
}

func pods(i *Item) string {
	if i.Pods == nil {
		return "-"
	}
	return fmt.Sprintf("%d/%d", i.Pods.Admitted, i.Pods.Admitted+i.Pods.Denied)
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Charges returns "quota: key=amount,...; quota: ...", sorted; no text for no charge.
func Charges(charges map[string]corev1.ResourceList) string {
	var parts []string
	for _, n := range slices.Sorted(maps.Keys(charges)) {
		if len(charges[n]) > 0 {
			parts = append(parts, n+": "+quota.Format(charges[n]))
		}
	}
	return strings.Join(parts, "; ")
}

const (
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	plain  = "\x1b[0m"
)

func (s Style) paint(colour, text string) string {
	if !s.Colour {
		return text
	}
	return colour + text + plain
}

// sentences writes messages and warnings in full: people must not have to ask for them.
func (r *Report) sentences(w io.Writer, s Style) error {
	var b strings.Builder
	for i := range r.Items {
		item := &r.Items[i]
		if item.Message == "" && len(item.Warnings) == 0 && item.Pending == "" && len(item.Devices) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n%s\n", item.Object)
		if item.Message != "" {
			fmt.Fprintf(&b, "  %s %s\n", s.paint(red, "denied:"), item.Message)
		}
		for _, warning := range item.Warnings {
			fmt.Fprintf(&b, "  %s %s\n", s.paint(yellow, "warning:"), warning)
		}
		for _, device := range item.Devices {
			fmt.Fprintf(&b, "  allocated: %s\n", device)
		}
		if item.Pending != "" {
			fmt.Fprintf(&b, "  %s %s\n", s.paint(yellow, "pending:"), strings.ReplaceAll(item.Pending, "\n", "\n    "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// usage writes what is charged to each quota.
func (r *Report) usage(w io.Writer, s Style, more bool) error {
	if len(r.Usage) == 0 {
		return nil
	}
	if more {
		fmt.Fprintln(w)
	}
	return UsageTable(r.Usage, s.Terminal).Write(w, false, s.NoHeaders)
}

// UsageTable returns the table of all quotas: per key the total, then the projects that use it.
func UsageTable(usage []Usage, bars bool) *Table {
	t := NewTable("Quota", "Project", "Key", "Used", "Hard", "Free", "Use")
	for i := range usage {
		u := &usage[i]
		for _, key := range quota.SortedKeys(u.Hard) {
			hard := u.Hard[key]
			used, counted := u.Used[key]
			if !counted {
				t.Row(u.Quota, "*", string(key), "?", hard.String(), "?", "not enforced")
				continue
			}
			t.Row(u.Quota, "*", string(key), used.String(), hard.String(), Free(hard, used), Use(used, hard, bars))
			for _, n := range u.Namespaces {
				if v := n.Used[key]; v.Sign() > 0 {
					t.Row(u.Quota, n.Namespace, string(key), v.String(), "", "", Use(v, hard, bars))
				}
			}
		}
	}
	return t
}

// Free returns what is left, 0 when nothing is.
func Free(hard, used resource.Quantity) string {
	left := hard.DeepCopy()
	left.Sub(used)
	if left.Sign() < 0 {
		left = *resource.NewQuantity(0, hard.Format)
	}
	return left.String()
}

// barWidth is how many characters a bar has.
const barWidth = 20

// Use returns the part that is used in percent, with a bar if wanted.
func Use(used, hard resource.Quantity, bar bool) string {
	if hard.Sign() <= 0 {
		if used.Sign() > 0 {
			return "over"
		}
		return "-"
	}
	part := used.AsApproximateFloat64() / hard.AsApproximateFloat64()
	text := fmt.Sprintf("%.0f%%", part*100)
	if used.Cmp(hard) > 0 {
		text += " over"
	}
	if !bar {
		return text
	}
	full := min(int(part*barWidth+0.5), barWidth)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "] " + text
}

// names writes one line per object, as kubectl does.
func (r *Report) names(w io.Writer) error {
	for i := range r.Items {
		item := &r.Items[i]
		if _, err := fmt.Fprintf(w, "%s %s\n", Resource(&item.Object), decision(item)); err != nil {
			return err
		}
	}
	return nil
}

// Resource returns "resourceclaim.resource.k8s.io/name", with the namespace before the name.
func Resource(r *sim.Ref) string {
	kind := strings.ToLower(r.Kind)
	if group, _, ok := strings.Cut(r.APIVersion, "/"); ok {
		kind += "." + group
	}
	if r.Namespace != "" {
		return kind + "/" + r.Namespace + "/" + r.Name
	}
	return kind + "/" + r.Name
}
