package input

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxDepth bounds lists in lists.
const maxDepth = 4

// Part is one document of a file, not decoded yet.
type Part struct {
	// Line where it begins, from 1.
	Line int
	Text []byte
	// root is the document as Find reads it.
	root *yamlv3.Node
}

// Split returns the documents of a YAML or JSON file, without those that are empty.
func Split(raw []byte) []Part {
	raw = bytes.TrimPrefix(raw, []byte("\xef\xbb\xbf"))
	var parts []Part
	start, line, begin := 0, 1, 1
	flush := func(end int) {
		text := raw[start:end]
		switch {
		case blank(text):
		case bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")):
			parts = append(parts, values(Part{Line: begin, Text: text})...)
		default:
			parts = append(parts, Part{Line: begin, Text: text})
		}
	}
	for pos := 0; pos < len(raw); line++ {
		next := len(raw)
		if i := bytes.IndexByte(raw[pos:], '\n'); i >= 0 {
			next = pos + i + 1
		}
		if separator(raw[pos:next]) {
			flush(pos)
			start, begin = next, line+1
			if rest := bytes.TrimSpace(raw[pos+3 : next]); len(rest) > 0 && rest[0] != '#' {
				start, begin = pos+3, line // content behind the dashes
			}
		}
		pos = next
	}
	flush(len(raw))
	return parts
}

// values returns the JSON values of the part, which may follow each other without anything
// between them; the part itself when it is not that.
func values(p Part) []Part {
	var parts []Part
	d := stdjson.NewDecoder(bytes.NewReader(p.Text))
	line, counted := p.Line, 0
	for {
		var raw stdjson.RawMessage
		switch err := d.Decode(&raw); {
		case errors.Is(err, io.EOF):
			return parts
		case err != nil:
			return []Part{p}
		}
		begin := int(d.InputOffset()) - len(raw)
		line += bytes.Count(p.Text[counted:begin], []byte("\n"))
		counted = begin
		parts = append(parts, Part{Line: line, Text: raw})
	}
}

func separator(line []byte) bool {
	return bytes.HasPrefix(line, []byte("---")) && (len(line) == 3 || strings.ContainsRune(" \t\r\n", rune(line[3])))
}

// blank tells whether there is nothing but comments and directives.
func blank(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' && !bytes.Equal(line, []byte("...")) {
			return false
		}
	}
	return true
}

// JSON returns the document as JSON. The error is an *Error without a file.
func (p *Part) JSON() ([]byte, error) {
	trimmed := bytes.TrimSpace(p.Text)
	if bytes.HasPrefix(trimmed, []byte("{")) && stdjson.Valid(trimmed) {
		return trimmed, nil
	}
	out, err := yaml.YAMLToJSONStrict(p.Text)
	if err == nil {
		return out, nil
	}
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "unmarshal errors:"), "\n  ")
	line := p.Line
	if m := lineNumber.FindStringSubmatchIndex(text); m != nil {
		if n, err := strconv.Atoi(text[m[2]:m[3]]); err == nil {
			line = p.Line + n - 1
			text = text[:m[0]] + text[m[1]:]
		}
	}
	return nil, &Error{Line: line, Err: errors.New("YAML: " + strings.TrimSpace(text))}
}

var lineNumber = regexp.MustCompile(`line (\d+): `)

// decode adds the objects of a file to the set.
func (r *Reader) decode(raw []byte, file string, set *Set) []error {
	var errs []error
	for _, part := range Split(raw) {
		text, err := part.JSON()
		if err != nil {
			errs = append(errs, in(file, err))
			continue
		}
		errs = append(errs, r.object(text, source{file: file, part: &part}, set, 0)...)
	}
	return sortErrors(errs)
}

func in(file string, err error) error {
	var e *Error
	if errors.As(err, &e) {
		e.File = file
	}
	return err
}

// source is where in a file an object is.
type source struct {
	file string
	part *Part
	// path of the object in the document, as "items[3]"; empty for the document itself.
	path string
}

// error returns an error at the path below the object.
func (s source) error(path string, err error) error {
	return &Error{File: s.file, Line: s.part.Find(join(s.path, path)), Err: err}
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "." + b
}

// object adds one object, or the items of a list.
func (r *Reader) object(text []byte, s source, set *Set, depth int) []error {
	var h header
	var list struct {
		Items []stdjson.RawMessage `json:"items"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &h); err != nil {
		return []error{s.error(fieldOf(err), plain(err))}
	}
	if strings.HasSuffix(h.Kind, "List") {
		if err := json.UnmarshalCaseSensitivePreserveInts(text, &list); err != nil {
			return []error{s.error("items", plain(err))}
		}
		if depth == maxDepth {
			return []error{s.error("", fmt.Errorf("lists in lists, more than %d deep", maxDepth))}
		}
		var errs []error
		for i, item := range list.Items {
			below := s
			below.path = join(s.path, "items") + fmt.Sprintf("[%d]", i)
			errs = append(errs, r.object(r.typed(item, &h), below, set, depth+1)...)
		}
		return errs
	}
	gvk, read, err := r.kindOf(&h)
	if err != nil {
		return []error{s.error("", err)}
	}
	if !read {
		set.Skipped = append(set.Skipped, Skipped{APIVersion: h.APIVersion, Kind: h.Kind, Namespace: h.Metadata.Namespace,
			Name: h.Metadata.Name, File: s.file, Line: s.line()})
		return nil
	}
	obj, errs := r.strict(text, gvk, s)
	if len(errs) == 0 {
		set.Documents = append(set.Documents, Document{Object: obj, File: s.file, Line: s.line()})
	}
	return errs
}

// line is where the object begins; looking for items of lists would cost more than it is worth.
func (s source) line() int {
	if s.path == "" {
		return s.part.first()
	}
	return s.part.Line
}

// first is the first line that is no comment.
func (p *Part) first() int {
	n := p.Line
	for line := range bytes.Lines(p.Text) {
		if t := bytes.TrimSpace(line); len(t) > 0 && t[0] != '#' {
			break
		}
		n++
	}
	return n
}

// typed gives items of a typed list their type, which they may leave out.
func (r *Reader) typed(item []byte, list *header) []byte {
	var fields map[string]stdjson.RawMessage
	if stdjson.Unmarshal(item, &fields) != nil || list.Kind == "List" || fields["kind"] != nil {
		return item
	}
	kind, err := stdjson.Marshal(strings.TrimSuffix(list.Kind, "List"))
	if err != nil {
		return item
	}
	version, err := stdjson.Marshal(list.APIVersion)
	if err != nil {
		return item
	}
	fields["kind"], fields["apiVersion"] = kind, version
	out, err := stdjson.Marshal(fields)
	if err != nil {
		return item
	}
	return out
}

// strict decodes the object; fields that the kind does not have are errors.
func (r *Reader) strict(text []byte, gvk schema.GroupVersionKind, s source) (runtime.Object, []error) {
	obj, err := r.scheme.New(gvk)
	if err != nil {
		return nil, []error{s.error("", err)}
	}
	unknown, err := json.UnmarshalStrict(text, obj)
	if err != nil {
		path := fieldOf(err)
		err = plain(err)
		if path == "" {
			if path = r.blame(text, gvk); path != "" {
				err = fmt.Errorf("%s: %w", path, err)
			}
		}
		return nil, []error{s.error(path, fmt.Errorf("%s: %w", gvk.Kind, err))}
	}
	var errs []error
	for _, u := range unknown {
		path := ""
		var f interface{ FieldPath() string }
		if errors.As(u, &f) {
			path = f.FieldPath()
		}
		errs = append(errs, s.error(path, fmt.Errorf("%s: %w", gvk.Kind, u)))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	return obj, nil
}

// fieldOf returns the field that a type error is about, "" when it names none.
func fieldOf(err error) string {
	var wrong *stdjson.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return wrong.Field
	}
	return ""
}

// plain says in words of manifests, not of Go, what is wrong with a value.
func plain(err error) error {
	var wrong *stdjson.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" && wrong.Value == "bool" {
		return fmt.Errorf("%s: true or false is not what belongs there; YAML takes y, n, yes, no, on and off for such: quote them", wrong.Field)
	}
	if errors.As(err, &wrong) && wrong.Field != "" {
		return fmt.Errorf("%s: a JSON %s is not what belongs there", wrong.Field, wrong.Value)
	}
	if errors.As(err, &wrong) {
		return fmt.Errorf("a JSON %s is no Kubernetes object", wrong.Value)
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// Decode decodes one object that is part of a document, at the path. The errors are *Errors.
func (r *Reader) Decode(text []byte, file string, p *Part, path string) ([]Document, error) {
	set := &Set{}
	errs := r.object(text, source{file: file, part: p, path: path}, set, 0)
	for _, s := range set.Skipped {
		errs = append(errs, &Error{File: file, Line: p.Find(path), Err: fmt.Errorf("kind %q has nothing to do with devices", s.Kind)})
	}
	return set.Documents, errors.Join(errs...)
}
