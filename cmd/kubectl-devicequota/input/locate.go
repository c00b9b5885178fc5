package input

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Find returns the line of the field at the path, as "spec.devices.requests[0].name", or of the
// closest field above it that there is. The first call reads the document again, so it is for
// errors only. It is not safe for concurrent use.
func (p *Part) Find(path string) int {
	if p.root == nil {
		p.root = &yaml.Node{}
		if yaml.Unmarshal(p.Text, p.root) != nil {
			p.root = &yaml.Node{}
		}
	}
	if len(p.root.Content) == 0 {
		return p.first()
	}
	node, line := p.root.Content[0], p.first()
	for path != "" && node != nil {
		var next *yaml.Node
		var at int
		if next, at, path = step(node, path); next == nil {
			break
		}
		node, line = next, p.Line+at-1
	}
	return line
}

// blame returns the path of the value that cannot be decoded, for errors that do not name it, as
// those of quantities; "" when no single value is to blame. It decodes the object again and again
// with everything left out but one field or item, and goes down where that still fails.
func (r *Reader) blame(text []byte, gvk schema.GroupVersionKind) string {
	var v any
	if json.Unmarshal(text, &v) != nil {
		return ""
	}
	path := ""
	whole := func(v any) any { return v }
	fails := func(v any) bool {
		raw, err := json.Marshal(v)
		if err != nil {
			return false
		}
		obj, err := r.scheme.New(gvk)
		return err == nil && json.Unmarshal(raw, obj) != nil
	}
	for {
		found := false
		for _, c := range children(v) {
			outer := whole
			within := func(v any) any { return outer(c.alone(v)) }
			if found = fails(within(c.value)); found {
				path, v, whole = path+c.path, c.value, within
				break
			}
		}
		if !found {
			return strings.TrimPrefix(path, ".")
		}
	}
}

// child is a field of an object or an item of a list.
type child struct {
	path  string
	value any
	// alone returns an object or list with nothing but the value there.
	alone func(v any) any
}

// children returns those of an object, sorted, or of a list.
func children(v any) []child {
	var out []child
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			out = append(out, child{"." + key, v[key], func(v any) any { return map[string]any{key: v} }})
		}
	case []any:
		for i := range v {
			out = append(out, child{fmt.Sprintf("[%d]", i), v[i], func(v any) any { return []any{v} }})
		}
	}
	return out
}

// step goes one field or index down; next is nil when there is none.
func step(node *yaml.Node, path string) (next *yaml.Node, line int, rest string) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if strings.HasPrefix(path, "[") {
		index, rest, found := strings.Cut(path[1:], "]")
		i, err := strconv.Atoi(index)
		if !found || err != nil || node.Kind != yaml.SequenceNode || i < 0 || i >= len(node.Content) {
			return nil, 0, ""
		}
		return node.Content[i], node.Content[i].Line, strings.TrimPrefix(rest, ".")
	}
	if node.Kind == yaml.SequenceNode && len(node.Content) > 0 {
		// Paths of type errors leave indices out.
		for _, item := range node.Content {
			if next, line, rest := step(item, path); next != nil {
				return next, line, rest
			}
		}
		return nil, 0, ""
	}
	if node.Kind != yaml.MappingNode {
		return nil, 0, ""
	}
	// Keys may have dots in them: the longest that fits is meant.
	for i, longest := 0, -1; i+1 < len(node.Content); i += 2 {
		key := node.Content[i].Value
		if !strings.HasPrefix(path, key) || len(key) <= longest {
			continue
		}
		if after := path[len(key):]; after == "" || after[0] == '.' || after[0] == '[' {
			longest = len(key)
			next, line, rest = node.Content[i+1], node.Content[i].Line, strings.TrimPrefix(after, ".")
		}
	}
	return next, line, rest
}
