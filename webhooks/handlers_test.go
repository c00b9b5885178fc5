package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
	"github.com/devicequota/devicequota/test/builders"
)

func TestAllVersionsOfAClaimAreChargedTheSame(t *testing.T) {
	claims := map[string]*resourceapi.ResourceClaim{
		"count":     builders.Claim(project, "c", builders.Exactly("r", "gpu", 2, "true")),
		"default":   builders.Claim(project, "c", resourceapi.DeviceRequest{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu"}}),
		"all":       builders.Claim(project, "c", builders.All("r", "gpu")),
		"list":      builders.Claim(project, "c", builders.FirstAvailable("r", builders.Sub("a", "gpu", 3), builders.Sub("b", "nic", 1)), builders.Exactly("s", "gpu", 1)),
		"undecided": builders.Claim(project, "c", builders.FirstAvailable("r", resourceapi.DeviceSubRequest{Name: "a", DeviceClassName: "gpu"})),
		"capacities": changed(builders.Claim(project, "c", builders.Exactly("r", "nic", 1)), func(c *resourceapi.ResourceClaim) {
			c.Spec.Devices.Requests[0].Exactly.Capacity = builders.Capacity("bandwidth", "3G")
		}),
	}
	for name, claim := range claims {
		t.Run(name, func(t *testing.T) {
			var want []corev1.ResourceList
			for _, version := range []string{versionV1, versionV1beta2, versionV1beta1} {
				w := newWorld(t, limit("a", devices, "9", memory, "1Ti", string(quota.ClaimsKey), "9", "nic.deviceclass.devicequota.io/capacity.bandwidth", "9G"))
				resp := Handlers(w.deps(), Options{})[PathValidateClaim].Handle(t.Context(), requestIn(t, version, claim))
				if !resp.Allowed || len(w.admitted) != 1 {
					t.Fatalf("%s: not admitted: %s", version, render(resp))
				}
				charge, err := w.admitted[0].Charge(w.quotas[0])
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, charge.Amounts)
			}
			for _, got := range want[1:] {
				if !quota.Equal(want[0], got) {
					t.Errorf("charges differ: %s and %s", quota.Format(want[0]), quota.Format(got))
				}
			}
			if len(want[0]) == 0 {
				t.Error("nothing was charged")
			}
		})
	}
}

func TestAV1beta1ObjectReadAsV1IsRefusedNotFree(t *testing.T) {
	w := newWorld(t, limit("a", devices, "9"))
	req := requestIn(t, versionV1beta1, builders.Claim(project, "c", builders.Exactly("r", "gpu", 2)))
	req.Kind.Version = versionV1
	req.Object.Raw = bytes.Replace(req.Object.Raw, []byte("v1beta1"), []byte("v1"), 1)
	resp := Handlers(w.deps(), Options{})[PathValidateClaim].Handle(t.Context(), req)
	if resp.Allowed || resp.Result.Code != http.StatusUnprocessableEntity || len(w.admitted) > 0 {
		t.Errorf("want 422 and no hold, got %s", render(resp))
	}
}

func TestTheLedgerIsAskedWithWhatIdentifiesTheObject(t *testing.T) {
	scheduler := func(r *admission.Request) { r.UserInfo.Username = DefaultScheduler }
	controller := by("system:serviceaccount:kube-system:resource-claim-controller")
	extended := func() *resourceapi.ResourceClaim {
		return annotated(ownedBy(builders.Claim(project, "c", builders.Exactly("r", "gpu", 1)), "p"), resourceapi.ExtendedResourceClaimAnnotation, "true")
	}
	pod := builders.Pod(project, "p")
	pod.UID = builders.UID("pod", project, "p")
	other := pod.DeepCopy()
	other.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "first"}
	replaced := pod.DeepCopy()
	replaced.UID = "another"
	base := func(kind v1alpha1.HoldKind, name string, uid types.UID) ledger.Request {
		return ledger.Request{UID: uid, Kind: kind, Namespace: project, Name: name, Arrived: time.Unix(1000, 0)}
	}
	claim := base(v1alpha1.HoldClaim, "c", builders.UID("claim", project, "c"))
	with := func(r ledger.Request, f func(*ledger.Request)) ledger.Request {
		f(&r)
		return r
	}
	charged := with(claim, func(r *ledger.Request) { r.PodUID = pod.UID })
	cases := map[string]struct {
		path   string
		review func(testing.TB) admission.Request
		pod    *corev1.Pod
		want   ledger.Request
	}{
		"claim":          {PathValidateClaim, review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 1))), nil, claim},
		"claim, dry run": {PathValidateClaim, review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 1)), dry), nil, with(claim, func(r *ledger.Request) { r.DryRun = true })},
		"claim for a template's pod names it": {PathValidateClaim, review(ownedBy(builders.Claim(project, "c", builders.Exactly("r", "gpu", 1)), "p"), controller), nil,
			with(claim, func(r *ledger.Request) { r.OwnerPod = pod.UID })},
		"claim with a tenant's owner reference":         {PathValidateClaim, review(ownedBy(builders.Claim(project, "c", builders.Exactly("r", "gpu", 1)), "p")), nil, claim},
		"scheduler's first claim of a charged pod":      {PathValidateClaim, review(extended(), scheduler), pod, charged},
		"scheduler's second claim is charged in full":   {PathValidateClaim, review(extended(), scheduler), other, claim},
		"scheduler's claim of a pod of an earlier time": {PathValidateClaim, review(extended(), scheduler), replaced, claim},
		"scheduler's claim of no pod":                   {PathValidateClaim, review(extended(), scheduler), nil, claim},
		"tenant's claim with the annotation":            {PathValidateClaim, review(extended()), pod, claim},
		"pod with extended resources": {PathValidatePodExtended, review(builders.Pod(project, "p", builders.Container("m", "example.com/gpu", "1"))), nil,
			base(v1alpha1.HoldPod, "p", builders.UID("pod", project, "p"))},
		"pod with claims is advisory": {PathValidatePodClaims, review(podWith(fromTemplate("g", "one"))), nil,
			with(base(v1alpha1.HoldPod, "p", builders.UID("pod", project, "p")), func(r *ledger.Request) { r.Advisory = true })},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, limit("a", devices, "9"))
			templates(w)
			if c.pod != nil {
				w.pods = map[string]*corev1.Pod{"p": c.pod}
			}
			resp := Handlers(w.deps(), Options{})[c.path].Handle(t.Context(), c.review(t))
			if !resp.Allowed || len(w.admitted) != 1 {
				t.Fatalf("not admitted: %s", render(resp))
			}
			got := w.admitted[0]
			got.Charge = nil
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func TestARefusalForAnotherReasonLeavesNoHold(t *testing.T) {
	w := newWorld(t, limit("a", devices, "4"))
	resp := Handlers(w.deps(), Options{AdminAccess: AdminAccessDeny})[PathValidateClaim].Handle(t.Context(), request(t, adminClaim()))
	if resp.Allowed || len(w.admitted) > 0 {
		t.Errorf("want a refusal without a hold, got %s and %d holds", render(resp), len(w.admitted))
	}
}

func TestOnlyCreatesOfTheObjectItselfAreJudged(t *testing.T) {
	w := newWorld(t, limit("a", devices, "0"))
	handlers := Handlers(w.deps(), Options{})
	for _, op := range []admissionv1.Operation{admissionv1.Update, admissionv1.Delete, admissionv1.Connect} {
		req := request(t, builders.Claim(project, "c", builders.Exactly("r", "gpu", 1)))
		req.Operation = op
		if resp := handlers[PathValidateClaim].Handle(t.Context(), req); !resp.Allowed {
			t.Errorf("%s: %s", op, render(resp))
		}
	}
	req := request(t, builders.Claim(project, "c", builders.Exactly("r", "gpu", 1)))
	req.SubResource = "status"
	for _, path := range []string{PathValidateClaim, PathMutateClaim} {
		if resp := handlers[path].Handle(t.Context(), req); !resp.Allowed || len(resp.Patches) > 0 {
			t.Errorf("%s, status: %s", path, render(resp))
		}
	}
	if len(w.admitted)+len(w.checked) > 0 {
		t.Error("the ledger was asked")
	}
}

func TestOverloadIsAnAnswerNotAnError(t *testing.T) {
	w := newWorld(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	blocked := admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
		close(entered)
		<-leave
		return pass()
	})
	rec := &counts{}
	g := &guard{webhook: "w", handler: blocked, slots: make(chan struct{}, 1), timeout: time.Second, ready: func() error { return nil }, recorder: rec}
	done := make(chan admission.Response)
	go func() { done <- g.Handle(t.Context(), admission.Request{}) }()
	<-entered
	resp := g.Handle(t.Context(), request(t, builders.Claim(project, "c")))
	close(leave)
	if first := <-done; !first.Allowed {
		t.Errorf("the first request: %s", render(first))
	}
	if resp.Allowed || resp.Result.Code != http.StatusTooManyRequests || resp.Result.Details.RetryAfterSeconds < 1 {
		t.Errorf("want 429 with retryAfterSeconds, got %s", render(resp))
	}
	if rec.inFlight != 0 {
		t.Errorf("%d requests are still counted as in flight", rec.inFlight)
	}
	_ = w
}

func TestNothingIsDecidedBeforeTheCachesAreFilled(t *testing.T) {
	w := newWorld(t)
	deps := w.deps()
	deps.Ready = func() error { return fmt.Errorf("claims: not received yet") }
	for path, h := range Handlers(deps, Options{}) {
		resp := h.Handle(t.Context(), request(t, builders.Claim(project, "c")))
		if resp.Allowed || resp.Result.Code != http.StatusInternalServerError || !strings.Contains(resp.Result.Message, "claims: not received yet") {
			t.Errorf("%s: want 500, got %s", path, render(resp))
		}
	}
}

func TestEachRequestHasADeadlineBelowTheServers(t *testing.T) {
	var got time.Duration
	probe := admission.HandlerFunc(func(ctx context.Context, _ admission.Request) admission.Response {
		end, _ := ctx.Deadline()
		got = time.Until(end)
		return pass()
	})
	g := &guard{webhook: "w", handler: probe, slots: make(chan struct{}, 1), timeout: DefaultTimeout, ready: func() error { return nil }, recorder: noRecorder{}}
	hook := &admission.Webhook{Handler: g, WithContextFunc: withServerTimeout}
	for query, most := range map[string]time.Duration{"": DefaultTimeout, "?timeout=2s": 1500 * time.Millisecond, "?timeout=30s": DefaultTimeout, "?timeout=x": DefaultTimeout} {
		post(t, hook, query, request(t, builders.Claim(project, "c")))
		if got > most || got < most-time.Second {
			t.Errorf("%q: %v are left, want %v", query, got, most)
		}
	}
}

// post sends a review as the API server does.
func post(t testing.TB, h http.Handler, query string, req admission.Request) *admissionv1.AdmissionReview {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: &req.AdmissionRequest})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/x"+query, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	var out admissionv1.AdmissionReview
	if err := json.Unmarshal(rec.Body.Bytes(), &out); err != nil {
		t.Fatalf("%v: %s", err, rec.Body)
	}
	return &out
}

func TestAPanicIsCountedAndAnswered(t *testing.T) {
	w := newWorld(t)
	w.panics = true
	deps := w.deps()
	rec := &counts{}
	deps.Recorder = rec
	resp := Handlers(deps, Options{})[PathValidateClaim].Handle(t.Context(), request(t, builders.Claim(project, "c", builders.Exactly("r", "gpu", 1))))
	if resp.Allowed || resp.Result.Code != http.StatusInternalServerError || rec.panics != 1 || rec.inFlight != 0 {
		t.Errorf("want 500, one panic and nothing in flight, got %s, %d and %d", render(resp), rec.panics, rec.inFlight)
	}
}

func TestEveryAnswerIsCountedByDecisionAndReason(t *testing.T) {
	w := newWorld(t, limit("a", devices, "1"))
	deps := w.deps()
	rec := &counts{}
	deps.Recorder = rec
	h := Handlers(deps, Options{})[PathValidateClaim]
	h.Handle(t.Context(), request(t, builders.Claim(project, "c", builders.Exactly("r", "gpu", 1))))
	h.Handle(t.Context(), request(t, builders.Claim(project, "c", builders.Exactly("r", "gpu", 2))))
	h.Handle(t.Context(), request(t, builders.Claim(project, "c", builders.Exactly("r", "missing", 1))))
	check := request(t, builders.Claim(project, "c"))
	check.UID = SelfCheckUID
	h.Handle(t.Context(), check)
	if diff := cmp.Diff([]string{DecisionAllowed, DecisionDenied, DecisionAllowed}, rec.decisions); diff != "" {
		t.Errorf("decisions (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Reason{ReasonQuotaExceeded, ReasonUnknownClass}, rec.reasons); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

func TestWhatAlertsCountIsZeroFromTheStart(t *testing.T) {
	r := prometheus.NewRegistry()
	m, err := NewMetrics(r)
	if err != nil {
		t.Fatal(err)
	}
	handlers := Handlers(newWorld(t).deps(), Options{})
	if got, want := testutil.CollectAndCount(m.panics), len(handlers); got != want {
		t.Errorf("panics of %d webhooks, want %d", got, want)
	}
	for path := range handlers {
		for _, decision := range []string{DecisionError, DecisionBusy, DecisionDenied} {
			if got := testutil.ToFloat64(m.admissions.WithLabelValues(path[1:], decision)); got != 0 {
				t.Errorf("%s %s: %v", path, decision, got)
			}
		}
	}
	if got, want := testutil.CollectAndCount(m.admissions), len(handlers)*len(decisions()); got != want {
		t.Errorf("%d decisions, want %d: some webhook or decision is not known", got, want)
	}
	m.Admission("w", DecisionWarned, []Reason{ReasonUnknownClass}, time.Millisecond)
	want := `
# HELP devicequota_admission_reasons_total Reasons given in refusals and warnings, by decision.
# TYPE devicequota_admission_reasons_total counter
devicequota_admission_reasons_total{decision="warned",reason="UnknownClass",webhook="w"} 1
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "devicequota_admission_reasons_total"); err != nil {
		t.Error(err)
	}
}

func TestARefusalIsOneLineOfJSONWithTheRequestsUIDAndNothingSecret(t *testing.T) {
	w := newWorld(t, limit("a", devices, "1"))
	claim := builders.Claim(project, "c", builders.Exactly("r", "gpu", 2))
	claim.Annotations = map[string]string{"note": "secret-1"}
	claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(`{"token":"secret-2"}`)}}}}}
	req := request(t, claim)
	req.UID = "6f0a3c1e-3d6b-4a6e-8f0e-0c6a5d3f7b11"
	req.UserInfo.Extra = map[string]authenticationv1.ExtraValue{"credential": {"secret-3"}}
	var log bytes.Buffer
	for level, lines := range map[slog.Level]int{0: 1, -1: 1} {
		log.Reset()
		hook := Webhooks(w.deps(), Options{})[PathValidateClaim]
		hook.LogConstructor = func(logr.Logger, *admission.Request) logr.Logger {
			return logr.FromSlogHandler(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: level}))
		}
		if got := post(t, hook, "", req); got.Response.Allowed {
			t.Fatal("admitted")
		}
		if got := strings.Count(log.String(), "\n"); got != lines || strings.Contains(log.String(), "secret-") {
			t.Errorf("level %d: want %d line without secrets, got:\n%s", level, lines, &log)
		}
		var line struct {
			Level, Msg, RequestID, Webhook, Decision, Namespace, Name, User, Message string
			Reasons                                                                  []Reason
			Code                                                                     int
		}
		if err := json.Unmarshal(log.Bytes(), &line); err != nil {
			t.Fatalf("%v: %s", err, &log)
		}
		want := line // the message is that of the golden files
		want.Level, want.Msg, want.RequestID, want.Webhook, want.Decision = "INFO", "refused", string(req.UID), PathValidateClaim[1:], DecisionDenied
		want.Namespace, want.Name, want.User, want.Code, want.Reasons = project, "c", req.UserInfo.Username, http.StatusForbidden, []Reason{ReasonQuotaExceeded}
		if diff := cmp.Diff(want, line); diff != "" || !strings.HasPrefix(line.Message, "exceeded quota: a") {
			t.Errorf("level %d: %q (-want +got):\n%s", level, line.Message, diff)
		}
	}
	log.Reset()
	w.quotas = nil
	hook := Webhooks(w.deps(), Options{})[PathValidateClaim]
	hook.LogConstructor = func(logr.Logger, *admission.Request) logr.Logger {
		return logr.FromSlogHandler(slog.NewJSONHandler(&log, nil))
	}
	if got := post(t, hook, "", req); !got.Response.Allowed || log.Len() > 0 {
		t.Errorf("an admission is logged at level 0: %s", &log)
	}
}

func TestWarningsKeepToTheirLength(t *testing.T) {
	for name, text := range map[string]string{
		"short": "a few words", "long words": strings.Repeat("x", 300) + " " + strings.Repeat("ü", 200), "many words": strings.Repeat("word ", 1000), "nothing": "",
	} {
		got := warn(ReasonQuotaExceeded, text)
		if len(got) > maxWarnings {
			t.Errorf("%s: %d warnings", name, len(got))
		}
		for _, w := range got {
			if len(w) > maxWarning || !strings.HasPrefix(w, "QuotaExceeded: ") || strings.ContainsRune(w, '\uFFFD') {
				t.Errorf("%s: %q", name, w)
			}
		}
	}
}

// reviewer answers access reviews from a list of users.
type reviewer struct {
	allowed map[string]bool
	asked   []authorizationv1.SubjectAccessReviewSpec
	err     error
}

func (r *reviewer) Create(_ context.Context, s *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	r.asked = append(r.asked, s.Spec)
	s = s.DeepCopy()
	s.Status.Allowed = r.allowed[s.Spec.User]
	return s, r.err
}

func TestAccessIsAskedOfTheAPIServerAndRememberedShortly(t *testing.T) {
	r := &reviewer{allowed: map[string]bool{"admin": true}}
	clock := testingclock.NewFakePassiveClock(time.Unix(0, 0))
	a := NewAccessReviews(r, clock)
	ask := func(user string, want bool, reviews int) {
		t.Helper()
		got, err := a.MayUseAdminAccess(t.Context(), authenticationv1.UserInfo{Username: user, Groups: []string{"g"}}, project)
		if err != nil || got != want || len(r.asked) != reviews {
			t.Errorf("%s: got %v, %v after %d reviews, want %v after %d", user, got, err, len(r.asked), want, reviews)
		}
	}
	ask("admin", true, 1)
	ask("admin", true, 1)
	ask("alice", false, 2)
	clock.SetTime(time.Unix(3, 0))
	ask("admin", true, 2)
	r.allowed["alice"] = true
	ask("alice", true, 3)
	clock.SetTime(time.Unix(11, 0))
	ask("admin", true, 4)
	want := &authorizationv1.ResourceAttributes{Namespace: project, Verb: "use", Group: "devicequota.io", Resource: "adminaccess"}
	if diff := cmp.Diff(want, r.asked[0].ResourceAttributes); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	r.err = errDown
	if _, err := a.MayUseAdminAccess(t.Context(), authenticationv1.UserInfo{Username: "bob"}, project); err == nil {
		t.Error("an outage is no answer")
	}
}

// applied returns the object after the patches.
func applied(t testing.TB, req admission.Request, resp admission.Response) admission.Request {
	t.Helper()
	if !resp.Allowed {
		t.Fatalf("refused: %s", render(resp))
	}
	ops, err := json.Marshal(resp.Patches)
	if err != nil {
		t.Fatal(err)
	}
	p, err := jsonpatch.DecodePatch(ops)
	if err != nil {
		t.Fatal(err)
	}
	if req.Object.Raw, err = p.Apply(req.Object.Raw); err != nil {
		t.Fatalf("%v: %s on %s", err, ops, req.Object.Raw)
	}
	return req
}

func shapingWorld(t testing.TB) *world {
	w := newWorld(t, limit("a", devices, "4"))
	w.annotations = map[string]string{DefaultClassAnnotation: "gpu", DeviceSelectorAnnotation: "true", PrioritizedListAnnotation: "Fit"}
	w.used["a"] = builders.List(devices, "2")
	return w
}

// plain is what a user writes: no class, alternatives that are too large.
func plain() *resourceapi.ResourceClaim {
	return builders.Claim(project, "c", builders.Exactly("r", "", 1, "1 > 0"),
		builders.FirstAvailable("l", builders.Sub("big", "gpu", 4), builders.Sub("mid", "", 1), builders.Sub("none", "gpu", 3)))
}

func TestMutationsAreTheSameInAllVersionsAndIdempotent(t *testing.T) {
	want := builders.Claim(project, "c", builders.Exactly("r", "gpu", 1, "1 > 0", "true"), builders.FirstAvailable("l", builders.Sub("mid", "gpu", 1, "true")))
	for _, version := range []string{versionV1, versionV1beta2, versionV1beta1} {
		t.Run(version, func(t *testing.T) {
			h := Handlers(shapingWorld(t).deps(), Options{})[PathMutateClaim]
			req := requestIn(t, version, plain())
			req = applied(t, req, h.Handle(t.Context(), req))
			got, err := decodeClaim(&req)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			if again := h.Handle(t.Context(), req); !again.Allowed || len(again.Patches) > 0 {
				t.Errorf("a second call changes something: %s", render(again))
			}
		})
	}
}

func TestAClaimFromAMutatedTemplateIsNotMutatedTwice(t *testing.T) {
	w := shapingWorld(t)
	delete(w.annotations, PrioritizedListAnnotation)
	handlers := Handlers(w.deps(), Options{})
	req := request(t, &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: project, Name: "t"},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: plain().Spec}})
	req = applied(t, req, handlers[PathMutateTemplate].Handle(t.Context(), req))
	template, err := decodeTemplate(&req)
	if err != nil {
		t.Fatal(err)
	}
	claim := builders.Claim(project, "c")
	claim.Spec = template.Spec.Spec
	if resp := handlers[PathMutateClaim].Handle(t.Context(), request(t, claim)); !resp.Allowed || len(resp.Patches) > 0 {
		t.Errorf("mutated twice: %s", render(resp))
	}
}

func TestApplyingTheSameManifestAgainKeepsTheStoredSpec(t *testing.T) {
	for _, version := range []string{versionV1, versionV1beta1} {
		w := shapingWorld(t)
		h := Handlers(w.deps(), Options{})[PathMutateClaim]
		stored := requestIn(t, version, plain())
		stored = applied(t, stored, h.Handle(t.Context(), stored))
		w.annotations = nil // whatever the namespace says by then
		half := plain()     // a server-side apply keeps the class that nobody else owns
		half.Spec.Devices.Requests[0].Exactly.DeviceClassName = "gpu"
		cases := map[string]struct {
			again    *resourceapi.ResourceClaim
			restored bool
		}{
			"the manifest":        {plain(), true},
			"half of it":          {half, true},
			"another count":       {changed(plain(), func(c *resourceapi.ResourceClaim) { c.Spec.Devices.Requests[0].Exactly.Count = 2 }), false},
			"another selector":    {changed(plain(), func(c *resourceapi.ResourceClaim) { c.Spec.Devices.Requests[0].Exactly.Selectors = nil }), false},
			"another request":     {changed(plain(), func(c *resourceapi.ResourceClaim) { c.Spec.Devices.Requests = c.Spec.Devices.Requests[:1] }), false},
			"another alternative": {changed(plain(), func(c *resourceapi.ResourceClaim) { c.Spec.Devices.Requests[1].FirstAvailable[1].Count = 3 }), false},
		}
		for name, c := range cases {
			t.Run(version+" "+name, func(t *testing.T) {
				req := requestIn(t, version, c.again)
				req.Operation, req.OldObject = admissionv1.Update, stored.Object
				resp := h.Handle(t.Context(), req)
				if restored := len(resp.Patches) > 0; restored != c.restored {
					t.Fatalf("restored: %v, want %v: %s", restored, c.restored, render(resp))
				}
				got := applied(t, req, resp)
				want := stored
				if !c.restored {
					want = req
				}
				a, err := decodeClaim(&got)
				if err != nil {
					t.Fatal(err)
				}
				b, err := decodeClaim(&want)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(b.Spec, a.Spec); diff != "" {
					t.Errorf("spec (-want +got):\n%s", diff)
				}
				if c.restored && a.Annotations[MutatedAnnotation] != b.Annotations[MutatedAnnotation] {
					t.Errorf("the record is lost: %v", a.Annotations)
				}
			})
		}
	}
}

func TestHandlersDoNotChangeTheirRequest(t *testing.T) {
	for name, c := range goldenCases() {
		w := newWorld(t, c.quotas...)
		if c.world != nil {
			c.world(w)
		}
		req := c.review(t)
		before := req.Object.DeepCopy().Raw
		path := c.path
		if path == "" {
			path = pathOf(req)
		}
		Handlers(w.deps(), c.options)[path].Handle(t.Context(), req)
		if !bytes.Equal(before, req.Object.Raw) {
			t.Errorf("%s: the object was changed in place", name)
		}
	}
}
