package scenario

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/json"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/input"
	"github.com/devicequota/devicequota/webhooks"
)

// Read returns the scenarios of the paths, files and folders, in order. Documents of other
// kinds are left out: they are what scenarios apply. The error joins everything that is wrong,
// each an *input.Error.
func Read(reader *input.Reader, paths []string, recursive bool) ([]*Scenario, error) {
	var out []*Scenario
	var errs []error
	for _, path := range paths {
		files, err := input.Files(path, recursive)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				errs = append(errs, &input.Error{File: file, Err: err})
				continue
			}
			found, err := decode(reader, raw, file)
			out = append(out, found...)
			errs = append(errs, err)
		}
	}
	return out, errors.Join(errs...)
}

// decode returns the scenarios of one file.
func decode(reader *input.Reader, raw []byte, file string) ([]*Scenario, error) {
	var out []*Scenario
	var errs []error
	for _, part := range input.Split(raw) {
		text, err := part.JSON()
		if err != nil {
			var e *input.Error
			if errors.As(err, &e) {
				e.File = file
			}
			errs = append(errs, err)
			continue
		}
		var h struct{ APIVersion, Kind string }
		if stdjson.Unmarshal(text, &h) != nil || h.Kind != Kind {
			continue
		}
		s := &Scenario{File: file, Line: part.Find(""), part: &part}
		if err := s.parse(reader, text, h.APIVersion); err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, s)
	}
	return out, errors.Join(errs...)
}

func (s *Scenario) error(path, format string, args ...any) error {
	return &input.Error{File: s.File, Line: s.part.Find(path), Err: fmt.Errorf(format, args...)}
}

func (s *Scenario) parse(reader *input.Reader, text []byte, version string) error {
	if version != APIVersion {
		return s.error("apiVersion", "apiVersion %q: want %s", version, APIVersion)
	}
	unknown, err := json.UnmarshalStrict(text, s)
	if err != nil {
		var wrong *stdjson.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return s.error(wrong.Field, "%s: a %s is not what belongs there", wrong.Field, wrong.Value)
		}
		return s.error("", "%w", err)
	}
	var errs []error
	for _, u := range unknown {
		var f json.FieldError
		path := ""
		if errors.As(u, &f) {
			path = f.FieldPath()
		}
		errs = append(errs, s.error(path, "%w", u))
	}
	errs = append(errs, s.validate()...)
	for i := range s.Steps {
		errs = append(errs, s.load(reader, i))
	}
	return errors.Join(errs...)
}

// validate returns what is wrong with the scenario apart from its objects.
func (s *Scenario) validate() []error {
	var errs []error
	if s.Metadata.Name == "" {
		errs = append(errs, s.error("metadata", "metadata.name is required"))
	}
	if len(s.Steps) == 0 {
		errs = append(errs, s.error("steps", "steps: at least one is required"))
	}
	policies := []string{"", string(webhooks.AdminAccessAllow), string(webhooks.AdminAccessWarn), string(webhooks.AdminAccessDeny)}
	if !slices.Contains(policies, s.Options.AdminAccess) {
		errs = append(errs, s.error("options.adminAccess", "options.adminAccess %q: want Allow, Warn or Deny", s.Options.AdminAccess))
	}
	if !slices.Contains([]string{"", platformKubernetes, platformOpenShift}, strings.ToLower(s.Options.Platform)) {
		errs = append(errs, s.error("options.platform", "options.platform %q: want kubernetes or openshift", s.Options.Platform))
	}
	return errs
}

// Platforms, in any case of letters.
const (
	platformKubernetes = "kubernetes"
	platformOpenShift  = "openshift"
)

// Verbs.
const (
	verbApply    = "apply"
	verbCreate   = "create"
	verbUpdate   = "update"
	verbDelete   = "delete"
	verbAllocate = "allocate"
	verbUsage    = "usage"
)

// load finds the step's verb and reads its objects.
func (s *Scenario) load(reader *input.Reader, i int) error {
	step := &s.Steps[i]
	path := fmt.Sprintf("steps[%d]", i)
	step.line = s.part.Find(path)
	var verbs []string
	for verb, is := range map[string]bool{
		verbApply: step.Apply != nil, verbCreate: step.Create != nil, verbUpdate: step.Update != nil,
		verbDelete: step.Delete != nil, verbAllocate: step.Allocate != nil, verbUsage: step.Usage != nil,
	} {
		if is {
			verbs = append(verbs, verb)
		}
	}
	slices.Sort(verbs)
	if len(verbs) != 1 {
		return s.error(path, "step %d has %d verbs (%s): want exactly one of apply, create, update, delete, allocate and usage",
			i+1, len(verbs), strings.Join(verbs, ", "))
	}
	step.verb = verbs[0]
	if err := s.validateStep(step, path); err != nil {
		return err
	}
	var list []stdjson.RawMessage
	switch step.verb {
	case verbApply:
		list = step.Apply
	case verbCreate:
		list = listOf(step.Create)
	case verbUpdate:
		list = listOf(step.Update)
	}
	return s.objects(reader, step, path+"."+step.verb, list)
}

// validateStep returns what is wrong with the step's own fields.
func (s *Scenario) validateStep(step *Step, path string) error {
	switch {
	case step.verb == verbAllocate && step.Allocate.Claim == "" && (len(step.Allocate.Devices) > 0 || step.Allocate.Release || len(step.Allocate.ReservedFor) > 0):
		return s.error(path+".allocate", "allocate: claim is required beside devices, reservedFor and release")
	case step.verb == verbAllocate && step.Allocate.Claim != "" && strings.Count(step.Allocate.Claim, "/") != 1:
		return s.error(path+".allocate.claim", "allocate.claim %q: want namespace/name", step.Allocate.Claim)
	case step.verb == verbAllocate && step.Allocate.Release && len(step.Allocate.Devices)+len(step.Allocate.ReservedFor) > 0:
		return s.error(path+".allocate", "allocate: release stands alone beside claim")
	case step.verb == verbAllocate && step.Allocate.Claim != "" && !step.Allocate.Release && len(step.Allocate.Devices)+len(step.Allocate.ReservedFor) == 0:
		return s.error(path+".allocate", "allocate: devices, reservedFor or release is required beside claim")
	case step.verb == verbDelete && (step.Delete.Kind == "" || step.Delete.Name == ""):
		return s.error(path+".delete", "delete: kind and name are required")
	case step.verb == verbUsage && step.Usage.Quota == "":
		return s.error(path+".usage", "usage.quota is required")
	case step.Expect != nil && (step.verb == verbApply || step.verb == verbUsage):
		return s.error(path+".expect", "%s has no expect", step.verb)
	}
	if step.Expect == nil {
		return nil
	}
	return s.validateExpect(step, path+".expect")
}

// validateExpect finds expectations that no answer to the verb can be compared with: they would
// hold whatever happens.
func (s *Scenario) validateExpect(step *Step, path string) error {
	e := step.Expect
	switch {
	case step.verb != verbAllocate && (e.Allocated != nil || e.Pending != nil):
		return s.error(path, "expect of %s: allocated and pending are for allocate", step.verb)
	case step.verb == verbAllocate && (!e.wantsAllowed() || len(e.Warnings)+len(e.Charge) > 0 || e.Pods != nil):
		return s.error(path, "expect of allocate: want allocated or pending: nothing is asked that could be refused, warned about or charged")
	}
	return nil
}

// listOf returns the elements of a list, or the one thing that is no list.
func listOf(raw stdjson.RawMessage) []stdjson.RawMessage {
	var list []stdjson.RawMessage
	if bytes.HasPrefix(bytes.TrimSpace(raw), []byte("[")) && stdjson.Unmarshal(raw, &list) == nil {
		return list
	}
	return []stdjson.RawMessage{raw}
}

// objects reads the step's objects and the files that it names, relative to the scenario's own.
func (s *Scenario) objects(reader *input.Reader, step *Step, path string, list []stdjson.RawMessage) error {
	var errs []error
	for i, raw := range list {
		below := path
		if step.verb == verbApply || len(list) > 1 {
			below = fmt.Sprintf("%s[%d]", path, i)
		}
		var file string
		if stdjson.Unmarshal(raw, &file) == nil {
			found, err := s.file(reader, below, file)
			errs = append(errs, err)
			step.objects = append(step.objects, found...)
			continue
		}
		found, err := reader.Decode(raw, s.File, s.part, below)
		errs = append(errs, err)
		step.objects = append(step.objects, found...)
	}
	for _, d := range step.objects {
		if m, err := meta.Accessor(d.Object); err == nil && m.GetNamespace() == "" && namespaced(d.Object.GetObjectKind().GroupVersionKind().Kind) {
			m.SetNamespace("default")
		}
	}
	return errors.Join(errs...)
}

func namespaced(kind string) bool {
	return !slices.Contains([]string{"Namespace", "Node", "DeviceClass", "ResourceSlice", "DeviceTaintRule", "ClusterResourceQuota"}, kind)
}

func (s *Scenario) file(reader *input.Reader, path, file string) ([]input.Document, error) {
	if file == "" {
		return nil, s.error(path, "an empty file name")
	}
	full := file
	if !filepath.IsAbs(file) {
		full = filepath.Join(filepath.Dir(s.File), file)
	}
	if _, err := os.Stat(full); err != nil {
		return nil, s.error(path, "file %q: no such file", file)
	}
	set, err := reader.Read([]string{full}, input.Options{})
	if err != nil {
		return nil, err
	}
	return set.Documents, nil
}
