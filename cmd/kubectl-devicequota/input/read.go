package input

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// Stdin is the path that means standard input.
const Stdin = "-"

// Document is one object with where it came from.
type Document struct {
	Object runtime.Object
	// File is the path as it was given, or "<stdin>".
	File string
	// Line is where the object's document begins, from 1.
	Line int
}

// At returns "file:line".
func (d *Document) At() string { return fmt.Sprintf("%s:%d", d.File, d.Line) }

// Skipped is an object that has nothing to do with devices.
type Skipped struct {
	APIVersion, Kind, Namespace, Name string
	File                              string
	Line                              int
}

// Error is what is wrong at one place.
type Error struct {
	File string
	// Line from 1; 0 when it is about the file as a whole.
	Line int
	Err  error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Err.Error()
	}
	return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Set is what was read, in the order of the paths, and within a folder in the order of names.
type Set struct {
	Documents []Document
	Skipped   []Skipped
}

// Options of Read.
type Options struct {
	// Recursive reads the sub-folders of folders, too.
	Recursive bool
	// Stdin is what Stdin stands for.
	Stdin io.Reader
	// Progress, if set, is called after each file with how many objects there are so far.
	Progress func(objects int)
}

// Read reads the paths. The error joins everything that is wrong, each an *Error; the Set then
// has what could be read.
func (r *Reader) Read(paths []string, o Options) (*Set, error) {
	set := &Set{}
	var errs []error
	for _, path := range paths {
		files, err := Files(path, o.Recursive)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, file := range files {
			raw, name, err := content(file, o.Stdin)
			if err != nil {
				errs = append(errs, &Error{File: file, Err: err})
				continue
			}
			errs = append(errs, r.decode(raw, name, set)...)
			if o.Progress != nil {
				o.Progress(len(set.Documents))
			}
		}
	}
	return set, errors.Join(errs...)
}

// content returns a file's content and the name to call it by.
func content(file string, stdin io.Reader) ([]byte, string, error) {
	if file == Stdin {
		if stdin == nil {
			return nil, "", errors.New("there is no standard input")
		}
		raw, err := io.ReadAll(stdin)
		return raw, "<stdin>", err
	}
	raw, err := os.ReadFile(file)
	var wrong *fs.PathError
	if errors.As(err, &wrong) {
		err = wrong.Err // its text names the path again
	}
	return raw, file, err
}

// Files returns the files that a path stands for: itself, or the manifests in a folder, sorted
// by name. The error is an *Error.
func Files(path string, recursive bool) ([]string, error) {
	if path == Stdin {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		var wrong *fs.PathError
		if errors.As(err, &wrong) {
			err = wrong.Err
		}
		return nil, &Error{File: path, Err: err}
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	root := path
	if link, err := os.Lstat(path); err == nil && link.Mode()&fs.ModeSymlink != 0 {
		root += string(filepath.Separator) // a folder that a link names is one
	}
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if p != root && !recursive {
				return filepath.SkipDir
			}
		case slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(p))):
			files = append(files, p)
		}
		return nil
	})
	if err != nil {
		return nil, &Error{File: path, Err: err}
	}
	if len(files) == 0 {
		return nil, &Error{File: path, Err: errors.New("the folder has no .yaml, .yml or .json file")}
	}
	return files, nil
}

// sortErrors orders errors of one file by line.
func sortErrors(errs []error) []error {
	slices.SortStableFunc(errs, func(a, b error) int {
		var x, y *Error
		if errors.As(a, &x) && errors.As(b, &y) {
			return cmp.Compare(x.Line, y.Line)
		}
		return 0
	})
	return errs
}
