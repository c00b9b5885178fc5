package scenarios

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/devicequota/devicequota/cmd/devicequota/app"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/input"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/scenario"
	"github.com/devicequota/devicequota/webhooks"
)

// group are the scenarios that one manager can serve: their options are its own.
type group struct {
	adminAccess, platform string
	scenarios             []*scenario.Scenario
}

func groups(all []*scenario.Scenario) []*group {
	var out []*group
	for _, s := range all {
		g := &group{adminAccess: cmp.Or(s.Options.AdminAccess, string(webhooks.AdminAccessWarn)), platform: cmp.Or(strings.ToLower(s.Options.Platform), app.PlatformKubernetes)}
		i := slices.IndexFunc(out, func(o *group) bool { return o.adminAccess == g.adminAccess && o.platform == g.platform })
		if i < 0 {
			i, out = len(out), append(out, g)
		}
		out[i].scenarios = append(out[i].scenarios, s)
	}
	return out
}

func TestOfflineAndOnAnAPIServerEverythingIsTheSame(t *testing.T) {
	reader, err := input.NewReader()
	if err != nil {
		t.Fatal(err)
	}
	all, err := scenario.Read(reader, []string{examples()}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups(all) {
		t.Run(g.platform+", admin access "+g.adminAccess, func(t *testing.T) {
			o := app.DefaultOptions()
			o.AdminAccess, o.Platform = webhooks.AdminAccessPolicy(g.adminAccess), g.platform
			startManager(t, o)
			if err := raiseBarrier(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, s := range g.scenarios {
				t.Run(s.Metadata.Name, func(t *testing.T) { play(t, s) })
			}
		})
	}
}

// play runs one scenario both ways, step by step.
func play(t *testing.T, s *scenario.Scenario) {
	undo, err := mayUse(t.Context(), s.Options.MayUseAdminAccess)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// t's own context has ended.
		if err := undo(context.Background()); err != nil {
			t.Error(err)
		}
		if err := clean(context.Background()); err != nil {
			t.Fatalf("cleaning after the scenario: %v", err)
		}
	})
	w := &world{server: newServer(), openshift: strings.EqualFold(s.Options.Platform, app.PlatformOpenShift)}
	out, err := scenario.RunBeside(t.Context(), s, w.beside)
	if err != nil {
		t.Fatal(err)
	}
	if f := out.Failure; f != nil {
		t.Errorf("%s:%d: step %d, %s:\n%s", s.File, f.Line, f.Step, f.Verb, f)
	}
}
