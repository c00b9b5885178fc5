package scenario

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"time"
)

// junit is the format that CI systems read.
type junit struct {
	XMLName  xml.Name `xml:"testsuites"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Time     string   `xml:"time,attr"`
	Suites   []suite  `xml:"testsuite"`
}

type suite struct {
	Name     string     `xml:"name,attr"`
	Tests    int        `xml:"tests,attr"`
	Failures int        `xml:"failures,attr"`
	Time     string     `xml:"time,attr"`
	Cases    []testcase `xml:"testcase"`

	elapsed time.Duration
}

type testcase struct {
	Name    string   `xml:"name,attr"`
	Class   string   `xml:"classname,attr"`
	File    string   `xml:"file,attr"`
	Line    int      `xml:"line,attr"`
	Time    string   `xml:"time,attr"`
	Failure *failure `xml:"failure,omitempty"`
}

type failure struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr"`
	Text    string `xml:",chardata"`
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 3, 64) }

// JUnit writes the outcomes as JUnit XML, one suite per file.
func JUnit(w io.Writer, outcomes []Outcome) error {
	out := junit{Tests: len(outcomes)}
	var total time.Duration
	for i := range outcomes {
		o := &outcomes[i]
		if n := len(out.Suites); n == 0 || out.Suites[n-1].Name != o.Scenario.File {
			out.Suites = append(out.Suites, suite{Name: o.Scenario.File})
		}
		s := &out.Suites[len(out.Suites)-1]
		c := testcase{Name: o.Scenario.Metadata.Name, Class: o.Scenario.File, File: o.Scenario.File, Line: o.Scenario.Line, Time: seconds(o.Elapsed)}
		if f := o.Failure; f != nil {
			out.Failures++
			s.Failures++
			c.Failure = &failure{Message: fmt.Sprintf("step %d, %s", f.Step, f.Verb), Type: "expectation",
				Text: fmt.Sprintf("%s:%d\n%s", o.Scenario.File, f.Line, f.String())}
		}
		s.Tests++
		s.elapsed += o.Elapsed
		total += o.Elapsed
		s.Time = seconds(s.elapsed)
		s.Cases = append(s.Cases, c)
	}
	out.Time = seconds(total)
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(out); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// JSON writes the outcomes as data.
func JSON(w io.Writer, outcomes []Outcome) error {
	type item struct {
		Name   string   `json:"name"`
		File   string   `json:"file"`
		Line   int      `json:"line"`
		Passed bool     `json:"passed"`
		Step   int      `json:"step,omitempty"`
		Verb   string   `json:"verb,omitempty"`
		Diff   []string `json:"diff,omitempty"`
	}
	out := struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Items      []item `json:"items"`
		Passed     int    `json:"passed"`
		Failed     int    `json:"failed"`
	}{APIVersion: APIVersion, Kind: "TestReport", Items: []item{}}
	for i := range outcomes {
		o := &outcomes[i]
		n := item{Name: o.Scenario.Metadata.Name, File: o.Scenario.File, Line: o.Scenario.Line, Passed: o.Failure == nil}
		if f := o.Failure; f != nil {
			n.Step, n.Verb, n.Line, n.Diff = f.Step, f.Verb, f.Line, f.Lines
			out.Failed++
		} else {
			out.Passed++
		}
		out.Items = append(out.Items, n)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(out)
}
