package app

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// The type of the configuration file.
const (
	ConfigAPIVersion = "config.devicequota.io/v1alpha1"
	ConfigKind       = "ManagerConfiguration"
)

// ApplyConfig sets flags from a configuration file: its keys are the flags' names in
// camelCase. What was given on the command line stays. The error names every key that is
// wrong.
func ApplyConfig(fs *pflag.FlagSet, data []byte) error {
	var content map[string]any
	if err := yaml.UnmarshalStrict(data, &content); err != nil {
		return err
	}
	if content["apiVersion"] != ConfigAPIVersion || content["kind"] != ConfigKind {
		return fmt.Errorf("apiVersion %v, kind %v: want %s, %s", content["apiVersion"], content["kind"], ConfigAPIVersion, ConfigKind)
	}
	delete(content, "apiVersion")
	delete(content, "kind")
	var wrong []string
	for _, key := range slices.Sorted(maps.Keys(content)) {
		if err := applyKey(fs, key, content[key]); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s", strings.Join(wrong, "; "))
	}
	return nil
}

func applyKey(fs *pflag.FlagSet, key string, value any) error {
	name := kebab(key)
	flag := fs.Lookup(name)
	if flag == nil || strings.Contains(key, "-") || name == "config" || name == "help" || name == "version" {
		return fmt.Errorf("unknown key %q%s", key, nearest(fs, name))
	}
	if flag.Changed {
		return nil
	}
	text, err := flagText(value)
	if err != nil {
		return fmt.Errorf("key %q: %w", key, err)
	}
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		err = list.Replace(text)
	} else if len(text) != 1 {
		return fmt.Errorf("key %q: want one value, not a list", key)
	} else {
		err = flag.Value.Set(text[0])
	}
	if err != nil {
		return fmt.Errorf("key %q: %w", key, err)
	}
	return nil
}

// flagText returns a YAML value as a flag's values.
func flagText(value any) ([]string, error) {
	switch v := value.(type) {
	case []any:
		out := make([]string, 0, len(v))
		for _, item := range v {
			one, err := flagText(item)
			if err != nil {
				return nil, err
			}
			out = append(out, one...)
		}
		return out, nil
	case string:
		return []string{v}, nil
	case float64:
		return []string{strconv.FormatFloat(v, 'f', -1, 64)}, nil // without exponent, which flags do not take
	case bool, int64:
		return []string{fmt.Sprint(v)}, nil
	}
	return nil, fmt.Errorf("%v: want text, a number, true, false or a list", value)
}

// kebab turns camelCase into a flag's name.
func kebab(key string) string {
	var b strings.Builder
	for i, r := range key {
		if unicode.IsUpper(r) {
			if i > 0 {
				b.WriteByte('-')
			}
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// nearest returns a hint at the flag whose name has most of the words.
func nearest(fs *pflag.FlagSet, name string) string {
	words := strings.Split(name, "-")
	best, most := "", 0
	fs.VisitAll(func(f *pflag.Flag) {
		n := 0
		for _, w := range strings.Split(f.Name, "-") {
			if slices.Contains(words, w) {
				n++
			}
		}
		if n > most {
			best, most = f.Name, n
		}
	})
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (do you mean the key for --%s?)", best)
}
