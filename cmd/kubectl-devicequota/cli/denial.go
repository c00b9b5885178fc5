package cli

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/report"
	"github.com/devicequota/devicequota/quota"
)

// DenialKey is one key of one quota in a denial.
type DenialKey struct {
	Quota     string `json:"quota"`
	Key       string `json:"key"`
	Requested string `json:"requested"`
	Used      string `json:"used"`
	Limited   string `json:"limited"`
	// Missing is by how much the request is too large.
	Missing string `json:"missing"`
	// Here and Elsewhere are what the project and the others together use; empty when not told.
	Here      string `json:"here,omitempty"`
	Elsewhere string `json:"elsewhere,omitempty"`
	// Unknown tells that nobody knows what the request costs.
	Unknown string `json:"unknown,omitempty"`
}

var (
	exceededText = regexp.MustCompile(`exceeded quota: ([^,;]+), requested: ([^ ;]*), used: ([^ ;]*), limited: ([^ ;"]*)`)
	sharesText   = regexp.MustCompile(`used by this project: ([^ ;]*), by the others together: ([^ ;"]*)`)
	unknownText  = regexp.MustCompile(`status unknown for quota: ([^,;]+), resources: ([^ ;]*)(?:; FootprintUnknown: ([^;]*))?`)
)

func newExplainDenial(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "denial [TEXT]",
		Short:   "Pull apart the message of a denial, from the arguments or standard input",
		Example: "  kubectl apply -f claim.yaml 2>&1 | kubectl devicequota explain denial",
		RunE: func(_ *cobra.Command, args []string) error {
			text := strings.Join(args, " ")
			if text == "" {
				raw, err := io.ReadAll(io.LimitReader(o.In, 1<<20))
				if err != nil {
					return err
				}
				text = string(raw)
			}
			return o.denial(text)
		},
	}
	o.addOutput(cmd, "json", "yaml")
	return cmd
}

func (o *options) denial(text string) error {
	if !slices.Contains([]string{"", "json", "yaml"}, o.output) {
		return fmt.Errorf("output %q: want json or yaml", o.output)
	}
	keys, err := parseDenial(text)
	switch {
	case err != nil:
		return err
	case len(keys) == 0:
		return errors.New(`no quota denial in the text: it has neither "exceeded quota:" nor "status unknown for quota:"`)
	case o.output == "json":
		return report.JSON(o.Out, keys)
	case o.output == "yaml":
		return report.YAML(o.Out, keys)
	}
	t := report.NewTable("Quota", "Key", "Requested", "Used", "Limited", "Missing", "Used here", "Used elsewhere")
	for _, k := range keys {
		t.Row(k.Quota, k.Key, dash(k.Requested), dash(k.Used), dash(k.Limited), dash(k.Missing), dash(k.Here), dash(k.Elsewhere))
	}
	if err := t.Write(o.Out, false, o.noHeaders); err != nil {
		return err
	}
	fmt.Fprintln(o.Out)
	for _, k := range keys {
		fmt.Fprintln(o.Out, advice(&k))
	}
	return nil
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// advice says in a sentence what can be done.
func advice(k *DenialKey) string {
	if k.Unknown != "" || k.Requested == "" {
		return fmt.Sprintf("%s: nothing tells what the request costs of %s; an administrator can declare it on the DeviceClass. %s", k.Quota, k.Key, k.Unknown)
	}
	limit, requested := resource.MustParse(k.Limited), resource.MustParse(k.Requested)
	if requested.Cmp(limit) > 0 {
		return fmt.Sprintf("%s: the request alone exceeds the limit of %s: ask for at most %s", k.Quota, k.Key, k.Limited)
	}
	text := fmt.Sprintf("%s: %s of %s must become free", k.Quota, k.Missing, k.Key)
	if here, err := resource.ParseQuantity(k.Here); err == nil {
		missing := resource.MustParse(k.Missing)
		if here.Cmp(missing) >= 0 {
			return text + "; this project alone could free it"
		}
		return text + "; other projects must free some of it, or the limit be raised"
	}
	return text
}

// parseDenial finds all denials in the text, by their order in it.
func parseDenial(text string) ([]DenialKey, error) {
	text = strings.ReplaceAll(text, "\n", " ")
	var out []DenialKey
	found := exceededText.FindAllStringSubmatchIndex(text, -1)
	for i, m := range found {
		end := len(text)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		sub := func(n int) string { return text[m[2*n]:m[2*n+1]] }
		var lists [5]corev1.ResourceList
		for n, list := range []string{sub(2), sub(3), sub(4)} {
			var err error
			if lists[n], err = parseList(list); err != nil {
				return nil, err
			}
		}
		if s := sharesText.FindStringSubmatch(text[m[1]:end]); s != nil {
			for n := range 2 {
				var err error
				if lists[3+n], err = parseList(s[n+1]); err != nil {
					return nil, err
				}
			}
		}
		out = append(out, denialKeys(sub(1), lists)...)
	}
	for _, m := range unknownText.FindAllStringSubmatch(text, -1) {
		for key := range strings.SplitSeq(m[2], ",") {
			out = append(out, DenialKey{Quota: m[1], Key: key, Unknown: strings.TrimSpace(m[3])})
		}
	}
	return out, nil
}

// denialKeys has one entry per requested key; the lists are requested, used, limited, here, elsewhere.
func denialKeys(name string, lists [5]corev1.ResourceList) []DenialKey {
	var out []DenialKey
	for _, key := range quota.SortedKeys(lists[0]) {
		missing := lists[0][key]
		missing = missing.DeepCopy()
		missing.Add(lists[1][key])
		missing.Sub(lists[2][key])
		k := DenialKey{Quota: name, Key: string(key), Requested: text(lists[0], key), Used: text(lists[1], key),
			Limited: text(lists[2], key), Missing: missing.String(), Here: text(lists[3], key), Elsewhere: text(lists[4], key)}
		out = append(out, k)
	}
	return out
}

func text(l corev1.ResourceList, key corev1.ResourceName) string {
	if l == nil {
		return ""
	}
	q := l[key]
	return q.String()
}

// parseList reads "key=amount,key=amount".
func parseList(text string) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for pair := range strings.SplitSeq(strings.Trim(text, ".,"), ",") {
		if pair == "" {
			continue
		}
		key, amount, _ := strings.Cut(pair, "=")
		q, err := resource.ParseQuantity(amount)
		if err != nil {
			return nil, fmt.Errorf("%q: the amount of %q is none: %w", pair, key, err)
		}
		out[corev1.ResourceName(key)] = q
	}
	return out, nil
}
