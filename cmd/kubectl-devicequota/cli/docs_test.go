package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// prompt precedes a command in the documents.
const prompt = "$ kubectl devicequota "

// What documents show of commands is what the commands print. A block of console lines is a
// session: commands with their output. A block of YAML with title=FILE is a file that the
// commands after it find. -update writes the outputs into the documents.
func TestDocumentsShowWhatCommandsPrint(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "docs/cli.md", "docs/tutorial.md"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Symlink(filepath.Join(root, "examples"), filepath.Join(dir, "examples")); err != nil {
				t.Fatal(err)
			}
			t.Chdir(dir)
			raw, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			want := string(raw)
			got, commands := play(t, want)
			if commands == 0 {
				t.Error("no command in the document")
			}
			if *update && got != want {
				if err := os.WriteFile(filepath.Join(root, name), []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-update writes it (-want +got):\n%s", diff)
			}
		})
	}
}

// play runs the commands of the document and returns it with their outputs.
func play(t *testing.T, text string) (out string, commands int) {
	t.Helper()
	var b strings.Builder
	fence, file := "", ""
	var content strings.Builder
	printed := false // the old output of a command is left out
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "```") && fence == "":
			fence = strings.TrimSpace(strings.TrimPrefix(line, "```"))
			_, file, _ = strings.Cut(fence, "title=")
			content.Reset()
			b.WriteString(line)
			continue
		case strings.HasPrefix(line, "```"):
			if file != "" {
				writeFile(t, file, content.String())
			}
			fence, file, printed = "", "", false
		case fence == "console" && strings.HasPrefix(line, prompt):
			if printed {
				b.WriteString("\n")
			}
			b.WriteString(line)
			stdout, stderr, _ := run(t, "", split(strings.TrimSpace(strings.TrimPrefix(line, prompt)))...)
			b.WriteString(stdout + stderr)
			printed = true
			commands++
			continue
		case fence == "console" && strings.HasPrefix(line, "$ "):
			printed = false
		case fence == "console" && printed:
			continue
		}
		content.WriteString(line)
		b.WriteString(line)
	}
	return b.String(), commands
}

func writeFile(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// split splits arguments at spaces outside of single quotes.
func split(command string) []string {
	var out []string
	for i, part := range strings.Split(command, "'") {
		if i%2 == 1 {
			out = append(out, part)
			continue
		}
		out = append(out, strings.Fields(part)...)
	}
	return out
}
