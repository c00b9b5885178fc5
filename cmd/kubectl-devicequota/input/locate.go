package input

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
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
