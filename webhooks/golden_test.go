package webhooks

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	quotav1 "github.com/openshift/api/quota/v1"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/google/go-cmp/cmp"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

var update = flag.Bool("update", false, "write the golden files")

// render shows everything that an answer says.
func render(r admission.Response) string {
	var b strings.Builder
	fmt.Fprintf(&b, "allowed: %v\n", r.Allowed)
	if !r.Allowed {
		fmt.Fprintf(&b, "status: %d %s\nmessage: %s\n", r.Result.Code, r.Result.Reason, r.Result.Message)
		if d := r.Result.Details; d != nil {
			if d.RetryAfterSeconds > 0 {
				fmt.Fprintf(&b, "retryAfterSeconds: %d\n", d.RetryAfterSeconds)
			}
			for _, c := range d.Causes {
				fmt.Fprintf(&b, "cause: %s field=%q %s\n", c.Type, c.Field, c.Message)
			}
		}
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	for _, k := range slices.Sorted(maps.Keys(r.AuditAnnotations)) {
		fmt.Fprintf(&b, "audit: %s=%s\n", k, r.AuditAnnotations[k])
	}
	for _, p := range r.Patches {
		v, err := json.Marshal(p)
		if err != nil {
			v = []byte(err.Error())
		}
		fmt.Fprintf(&b, "patch: %s\n", v)
	}
	return b.String()
}

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

// goldenCase is one review and the world that it meets.
type goldenCase struct {
	quotas  []*quotav1.ClusterResourceQuota
	world   func(*world)
	options Options
	path    string // empty: by resource
	review  func(testing.TB) admission.Request
}

func limit(name string, hard ...string) *quotav1.ClusterResourceQuota {
	return builders.Quota(name, builders.List(hard...))
}

func annotated[T metav1.Object](o T, kv ...string) T {
	a := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		a[kv[i]] = kv[i+1]
	}
	o.SetAnnotations(a)
	return o
}

func adminClaim() *resourceapi.ResourceClaim {
	c := builders.Claim(project, "monitor", builders.All("all", "gpu"))
	c.Spec.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
	return c
}

func ownedBy(c *resourceapi.ResourceClaim, pod string) *resourceapi.ResourceClaim {
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: builders.UID("pod", project, pod), Controller: ptr.To(true)}}
	return c
}

func podWith(claims ...corev1.PodResourceClaim) *corev1.Pod {
	p := builders.Pod(project, "p", builders.Container("main"))
	p.Spec.ResourceClaims = claims
	return p
}

func fromTemplate(name, template string) corev1.PodResourceClaim {
	return corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: &template}
}

func direct(name, claim string) corev1.PodResourceClaim {
	return corev1.PodResourceClaim{Name: name, ResourceClaimName: &claim}
}

func templates(w *world) {
	w.templates = map[string]*resourceapi.ResourceClaimTemplate{
		"one": builders.Template(project, "one", builders.Exactly("r", "gpu", 1)),
		"two": builders.Template(project, "two", builders.Exactly("r", "gpu", 2)),
	}
	w.claims = map[string]*resourceapi.ResourceClaim{"there": builders.Claim(project, "there", builders.Exactly("r", "gpu", 4))}
}

func using(name string, used ...string) func(*world) {
	return func(w *world) { w.used[name] = builders.List(used...) }
}

func updates(old, obj runtime.Object) func(testing.TB) admission.Request {
	return func(t testing.TB) admission.Request {
		req := request(t, obj)
		req.Operation = admissionv1.Update
		req.OldObject = request(t, old).Object
		return req
	}
}

// goldenCases is every kind of answer, named as its golden file.
func goldenCases() map[string]goldenCase {
	cases := map[string]goldenCase{}
	for _, more := range []map[string]goldenCase{claimCases(), policyCases(), badInputCases(), templateCases(), podCases(), quotaCases(), mutateCases()} {
		maps.Copy(cases, more)
	}
	return cases
}

func claimCases() map[string]goldenCase {
	two := []*quotav1.ClusterResourceQuota{limit("a", devices, "4"), limit("b", devices, "2", memory, "100Gi", string(quota.ClaimsKey), "1")}
	return map[string]goldenCase{
		"claim-allowed":                       {quotas: two, review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 2)))},
		"claim-without-a-quota":               {review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 2)))},
		"claim-QuotaExceeded":                 {quotas: two, world: using("a", devices, "3"), review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 2)))},
		"claim-QuotaExceeded-by-two-quotas":   {quotas: two, world: using("a", devices, "3"), review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 3)))},
		"claim-QuotaExceeded-firstAvailable":  {quotas: two[:1], world: using("a", devices, "3"), review: review(builders.Claim(project, "c", builders.FirstAvailable("r", builders.Sub("big", "gpu", 2), builders.Sub("small", "gpu", 1))))},
		"claim-QuotaExceeded-warn":            {quotas: []*quotav1.ClusterResourceQuota{annotated(limit("soft", devices, "1"), quota.EnforcementAnnotation, "Warn")}, review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 2)))},
		"claim-QuotaExceeded-audit":           {quotas: []*quotav1.ClusterResourceQuota{annotated(limit("quiet", devices, "1"), quota.EnforcementAnnotation, "Audit")}, review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 2)))},
		"claim-FootprintUnknown":              {quotas: []*quotav1.ClusterResourceQuota{limit("a", "none.deviceclass.devicequota.io/capacity.memory", "100Gi")}, review: review(builders.Claim(project, "c", builders.Exactly("r", "none", 1)))},
		"claim-FootprintUnknown-allowed":      {quotas: []*quotav1.ClusterResourceQuota{annotated(limit("a", "none.deviceclass.devicequota.io/capacity.memory", "100Gi"), quota.UnknownFootprintAnnotation, "Allow")}, review: review(builders.Claim(project, "c", builders.Exactly("r", "none", 1)))},
		"claim-UnknownClass":                  {quotas: []*quotav1.ClusterResourceQuota{limit("a", "missing.deviceclass.devicequota.io/devices", "4")}, review: review(builders.Claim(project, "c", builders.Exactly("r", "missing", 2)))},
		"claim-NoMatchingDevice":              {quotas: two[:1], review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 1, `device.attributes["gpu.example.com"].model == "h100"`)))},
		"claim-NoMatchingDevice-too-many":     {review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 5)))},
		"claim-busy":                          {quotas: two, world: func(w *world) { w.busy = "7 holds stand in the way" }, review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 1)))},
		"claim-outage":                        {quotas: two, world: func(w *world) { w.failure = errDown }, review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 1)))},
		"claim-panic":                         {quotas: two, world: func(w *world) { w.panics = true }, review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 1)))},
		"claim-in-an-exempt-namespace":        {quotas: two, options: Options{ExemptNamespaces: []string{project}}, review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 9)))},
		"claim-huge-count-is-charged-exactly": {quotas: []*quotav1.ClusterResourceQuota{limit("a", devices, "9223372036854775808", memory, "1Ei")}, review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 9223372036854775807)))},
	}
}

func policyCases() map[string]goldenCase {
	denyAdmin := Options{AdminAccess: AdminAccessDeny}
	precious := builders.Claim(project, "c", builders.Exactly("r", "precious", 1))
	adminTemplate := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: project, Name: "t"},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: adminClaim().Spec}}
	return map[string]goldenCase{
		"claim-QuotaRequired":                         {quotas: []*quotav1.ClusterResourceQuota{limit("a", devices, "4")}, review: review(precious)},
		"claim-QuotaRequired-and-QuotaExceeded":       {quotas: []*quotav1.ClusterResourceQuota{limit("a", string(quota.ClaimsKey), "0")}, review: review(precious)},
		"claim-QuotaRequired-met-by-a-selector":       {quotas: []*quotav1.ClusterResourceQuota{annotated(limit("a", "all.selector.devicequota.io/devices", "4"), quota.SelectorAnnotationPrefix+"all", "true")}, review: review(precious)},
		"claim-QuotaRequired-met-by-kubernetes-key":   {quotas: []*quotav1.ClusterResourceQuota{limit("a", "precious.deviceclass.resource.k8s.io/devices", "4")}, review: review(precious)},
		"claim-AdminAccessForbidden":                  {options: denyAdmin, review: review(adminClaim())},
		"claim-AdminAccessForbidden-warn":             {review: review(adminClaim())},
		"claim-adminAccess-allowed-by-role":           {options: denyAdmin, world: func(w *world) { w.mayAdmin = true }, review: review(adminClaim())},
		"claim-adminAccess-not-asked":                 {options: Options{AdminAccess: AdminAccessAllow}, review: review(adminClaim())},
		"claim-adminAccess-made-for-a-pod":            {options: denyAdmin, review: review(ownedBy(adminClaim(), "p"), by("system:serviceaccount:kube-system:resource-claim-controller"))},
		"claim-adminAccess-owner-written-by-a-tenant": {options: denyAdmin, review: review(ownedBy(adminClaim(), "p"))},
		"claim-adminAccess-review-fails":              {options: denyAdmin, world: func(w *world) { w.failure = errDown }, review: review(adminClaim())},
		"template-AdminAccessForbidden":               {options: denyAdmin, review: review(adminTemplate)},
	}
}

func badInputCases() map[string]goldenCase {
	q := []*quotav1.ClusterResourceQuota{limit("a", devices, "4")}
	return map[string]goldenCase{
		"claim-Invalid-neither":                 {quotas: q, review: raw(`{"devices":{"requests":[{"name":"r"}]}}`)},
		"claim-Invalid-both":                    {quotas: q, review: raw(`{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu"},"firstAvailable":[{"name":"a","deviceClassName":"gpu"}]}]}}`)},
		"claim-Invalid-negative-count":          {quotas: q, review: raw(`{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu","count":-3}}]}}`)},
		"claim-Invalid-unknown-mode":            {quotas: q, review: raw(`{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu","allocationMode":"Some"}}]}}`)},
		"claim-Invalid-no-class":                {quotas: q, review: raw(`{"devices":{"requests":[{"name":"r","exactly":{}}]}}`)},
		"claim-Invalid-selector":                {quotas: q, review: raw(`{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu","selectors":[{"cel":{"expression":"device.nonsense("}}]}}]}}`)},
		"claim-Invalid-selector-without-cel":    {quotas: q, review: raw(`{"devices":{"requests":[{"name":"r","firstAvailable":[{"name":"a","deviceClassName":"gpu","selectors":[{}]}]}]}}`)},
		"claim-Invalid-selector-without-quotas": {review: raw(`{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu","selectors":[{"cel":{"expression":"1"}}]}}]}}`)},
		"claim-Invalid-spec-is-a-list":          {quotas: q, review: raw(`[]`)},
		"claim-Invalid-count-is-text":           {quotas: q, review: raw(`{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu","count":"four"}}]}}`)},
		"claim-Invalid-not-json":                {quotas: q, review: raw(`{`)},
		"claim-Invalid-no-object":               {quotas: q, review: review(builders.Claim(project, "c"), func(r *admission.Request) { r.Object.Raw = nil })},
		"claim-Invalid-kind-disagrees":          {quotas: q, review: review(builders.Claim(project, "c"), func(r *admission.Request) { r.Kind.Kind = "Pod" })},
		"claim-Invalid-version-disagrees":       {quotas: q, review: review(builders.Claim(project, "c"), func(r *admission.Request) { r.Kind.Version = versionV1beta1 })},
		"claim-Invalid-version-unknown":         {quotas: q, review: review(builders.Claim(project, "c"), func(r *admission.Request) { r.Kind.Version = "v2" })},
		"claim-unknown-fields-are-left-out":     {quotas: q, review: raw(`{"future":1,"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu","shiny":true}}]}}`)},
		"claim-without-requests":                {quotas: q, review: raw(`{}`)},
		"template-Invalid-neither": {quotas: q, review: func(t testing.TB) admission.Request {
			return request(t, builders.Template(project, "t", resourceapi.DeviceRequest{Name: "r"}))
		}},
	}
}

func templateCases() map[string]goldenCase {
	q := []*quotav1.ClusterResourceQuota{limit("a", devices, "4")}
	return map[string]goldenCase{
		"template-allowed":              {quotas: q, review: review(builders.Template(project, "t", builders.Exactly("r", "gpu", 4)))},
		"template-QuotaExceeded-ever":   {quotas: q, review: review(builders.Template(project, "t", builders.Exactly("r", "gpu", 5)))},
		"template-QuotaExceeded-now":    {quotas: q, world: using("a", devices, "1"), review: review(builders.Template(project, "t", builders.Exactly("r", "gpu", 4)))},
		"template-UnknownClass":         {quotas: q, review: review(builders.Template(project, "t", builders.Exactly("r", "missing", 4)))},
		"template-NoMatchingDevice":     {quotas: q, review: review(builders.Template(project, "t", builders.Exactly("r", "gpu", 1, "false")))},
		"template-QuotaRequired":        {quotas: q, review: review(builders.Template(project, "t", builders.Exactly("r", "precious", 1)))},
		"template-outage":               {quotas: q, world: func(w *world) { w.failure = errDown }, review: review(builders.Template(project, "t", builders.Exactly("r", "gpu", 1)))},
		"template-update-is-passed":     {quotas: q, review: updates(builders.Template(project, "t", builders.Exactly("r", "gpu", 1)), builders.Template(project, "t", builders.Exactly("r", "gpu", 9)))},
		"template-FootprintUnknown":     {quotas: []*quotav1.ClusterResourceQuota{limit("a", "none.deviceclass.devicequota.io/capacity.memory", "1Gi")}, review: review(builders.Template(project, "t", builders.Exactly("r", "none", 1)))},
		"template-QuotaExceeded-warned": {quotas: []*quotav1.ClusterResourceQuota{annotated(limit("soft", devices, "1"), quota.EnforcementAnnotation, "Warn")}, review: review(builders.Template(project, "t", builders.Exactly("r", "gpu", 2)))},
	}
}

func podCases() map[string]goldenCase {
	q := []*quotav1.ClusterResourceQuota{limit("a", devices, "4")}
	extended := builders.Pod(project, "p", builders.Container("main", "example.com/gpu", "3"))
	both := extended.DeepCopy()
	both.Spec.ResourceClaims = []corev1.PodResourceClaim{fromTemplate("extra", "two")}
	grouped := podWith(fromTemplate("g", "two"))
	grouped.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("workers")}
	return map[string]goldenCase{
		"pod-claims-fit":                      {quotas: q, world: templates, review: review(podWith(fromTemplate("g", "one"), fromTemplate("h", "two")))},
		"pod-claims-QuotaExceeded":            {quotas: q, world: func(w *world) { templates(w); using("a", devices, "2")(w) }, review: review(podWith(fromTemplate("g", "one"), fromTemplate("h", "two")))},
		"pod-claims-exist-already":            {quotas: q, world: templates, review: review(podWith(direct("g", "there")))},
		"pod-claims-not-there-yet":            {quotas: q, world: templates, review: review(podWith(direct("g", "later"), fromTemplate("h", "later-too")))},
		"pod-claims-of-a-pod-group":           {quotas: q, world: func(w *world) { templates(w); using("a", devices, "4")(w) }, review: review(grouped)},
		"pod-claims-outage-is-unchecked":      {quotas: q, world: func(w *world) { templates(w); w.failure = errDown }, review: review(podWith(fromTemplate("g", "one")))},
		"pod-claims-busy":                     {quotas: q, world: func(w *world) { templates(w); w.busy = "7 holds stand in the way" }, review: review(podWith(fromTemplate("g", "one")))},
		"pod-extended-charged":                {quotas: q, path: PathValidatePodExtended, review: review(extended)},
		"pod-extended-QuotaExceeded":          {quotas: q, path: PathValidatePodExtended, world: using("a", devices, "2"), review: review(extended)},
		"pod-extended-of-a-device-plugin":     {quotas: q, path: PathValidatePodExtended, review: review(builders.Pod(project, "p", builders.Container("main", "other.example.com/nic", "3")))},
		"pod-extended-with-claims-do-not-fit": {quotas: q, path: PathValidatePodExtended, world: templates, review: review(both)},
		"pod-extended-outage":                 {quotas: q, path: PathValidatePodExtended, world: func(w *world) { w.failure = errDown }, review: review(extended)},
		"pod-is-no-pod":                       {quotas: q, review: review(podWith(), func(r *admission.Request) { r.Object.Raw = []byte(`{"spec":7}`) })},
	}
}

func quotaCases() map[string]goldenCase {
	bad := limit("bad", devices, "-1", "gpu.deviceclass.devicequota.io/gpus", "1", memory, "-1Gi", "x.selector.devicequota.io/devices", "1", "y.selector.devicequota.io/devices", "1")
	annotated(bad, quota.EnforcementAnnotation, "Maybe", quota.SelectorAnnotationPrefix+"y", "device.nonsense(")
	everywhere := limit("everywhere", devices, "1500m")
	everywhere.Spec.Selector = quotav1.ClusterResourceQuotaSelector{}
	scoped := limit("scoped", devices, "1")
	scoped.Spec.Quota.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
	return map[string]goldenCase{
		"quota-allowed":                {review: review(limit("a", string(quota.ClaimsKey), "4"))},
		"quota-Invalid-keys":           {review: review(bad)},
		"quota-Invalid-empty-selector": {review: review(everywhere)},
		"quota-Invalid-no-quantity": {review: review(limit("a", devices, "4"), func(r *admission.Request) {
			r.Object.Raw = []byte(strings.Replace(string(r.Object.Raw), `"4"`, `"four"`, 1))
		})},
		"quota-Invalid-stays":                    {review: updates(bad, annotated(bad.DeepCopy(), quota.EnforcementAnnotation, "Maybe", quota.SelectorAnnotationPrefix+"y", "device.nonsense(", "note", "x"))},
		"quota-Invalid-grows":                    {review: updates(bad, changed(bad.DeepCopy(), func(q *quotav1.ClusterResourceQuota) { q.Spec.Quota.Hard[devices] = builders.List("x", "-2")["x"] }))},
		"quota-UnknownClass":                     {review: review(limit("a", "missing.deviceclass.devicequota.io/devices", "4", "requests.nobody.example.com/gpu", "1"))},
		"quota-UnenforcedKey":                    {review: review(limit("a", "pods", "4", "requests.cpu", "10"))},
		"quota-UnenforcedKey-on-openshift":       {options: Options{PlatformQuota: true, PlatformKeys: true}, review: review(limit("a", "pods", "4", "gpu.deviceclass.resource.k8s.io/devices", "1"))},
		"quota-UnenforcedKey-scopes":             {review: review(scoped)},
		"quota-ZeroDefault":                      {review: review(limit("a", "nic.deviceclass.devicequota.io/capacity.bandwidth", "4G"))},
		"quota-AliasedKey":                       {review: review(limit("a", devices, "4"))},
		"quota-BelowUsage":                       {world: using("a", string(quota.ClaimsKey), "7"), review: updates(limit("a", string(quota.ClaimsKey), "9"), limit("a", string(quota.ClaimsKey), "4"))},
		"quota-BelowUsage-not-for-other-changes": {world: using("a", string(quota.ClaimsKey), "7"), review: updates(limit("a", string(quota.ClaimsKey), "4"), limit("a", string(quota.ClaimsKey), "4"))},
		"quota-FootprintUnknown":                 {review: review(limit("a", "none.deviceclass.devicequota.io/capacity.memory", "4Gi"))},
		"quota-being-deleted": {review: updates(bad, changed(bad.DeepCopy(), func(q *quotav1.ClusterResourceQuota) {
			q.DeletionTimestamp = ptr.To(metav1.Unix(5, 0))
			q.Spec.Quota.Hard[devices] = builders.List("x", "-2")["x"]
		}))},
	}
}

func mutateCases() map[string]goldenCase {
	shape := func(kv ...string) func(*world) {
		return func(w *world) { w.annotations = annotated(&metav1.ObjectMeta{}, kv...).Annotations }
	}
	return map[string]goldenCase{
		"mutate-default-class":         {path: PathMutateClaim, world: shape(DefaultClassAnnotation, "gpu"), review: review(builders.Claim(project, "c", builders.Exactly("r", "", 1)))},
		"mutate-device-selector":       {path: PathMutateClaim, world: shape(DeviceSelectorAnnotation, "true"), review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 1), builders.Exactly("s", "gpu", 1, "1 > 0")))},
		"mutate-Invalid-annotations":   {path: PathMutateClaim, world: shape(DeviceSelectorAnnotation, "device.nonsense(", DefaultClassAnnotation, "NO", PrioritizedListAnnotation, "Best"), review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 1)))},
		"mutate-outage":                {path: PathMutateClaim, world: func(w *world) { w.failure = errDown }, review: review(builders.Claim(project, "c", builders.Exactly("r", "gpu", 1)))},
		"mutate-off":                   {path: PathMutateClaim, review: review(builders.Claim(project, "c", builders.Exactly("r", "", 1)))},
		"mutate-prioritized-list":      {quotas: []*quotav1.ClusterResourceQuota{limit("a", devices, "4")}, path: PathMutateClaim, world: func(w *world) { shape(PrioritizedListAnnotation, "Fit")(w); using("a", devices, "2")(w) }, review: review(builders.Claim(project, "c", builders.FirstAvailable("r", builders.Sub("big", "gpu", 4), builders.Sub("mid", "gpu", 2), builders.Sub("small", "gpu", 1))))},
		"mutate-template-class":        {path: PathMutateTemplate, world: shape(DefaultClassAnnotation, "gpu", PrioritizedListAnnotation, "Fit"), review: review(builders.Template(project, "t", builders.Exactly("r", "", 1)))},
		"mutate-template-is-something": {path: PathMutateTemplate, world: shape(DefaultClassAnnotation, "gpu"), review: review(builders.Template(project, "t"), func(r *admission.Request) { r.Object.Raw = []byte(`{"spec":{"spec":{"devices":{"requests":[7]}}}}`) })},
	}
}

func TestEveryAnswerIsAsItsGoldenFileSays(t *testing.T) {
	for name, c := range goldenCases() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.quotas...)
			if c.world != nil {
				c.world(w)
			}
			req := c.review(t)
			path := c.path
			if path == "" {
				path = pathOf(req)
			}
			got := Handlers(w.deps(), c.options)[path].Handle(t.Context(), req)
			for _, warning := range got.Warnings {
				reason, _, _ := strings.Cut(warning, ":")
				if len(warning) > maxWarning || !known(Reason(reason)) {
					t.Errorf("warning %q: want a reason first and at most %d bytes", warning, maxWarning)
				}
			}
			checkGolden(t, name, render(got))
		})
	}
}

func TestNoGoldenFileIsLeftBehind(t *testing.T) {
	cases := goldenCases()
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".golden")
		if _, ok := cases[name]; !ok {
			t.Errorf("%s has no case", f)
		}
	}
}

func TestEveryReasonHasAGoldenFileAndAPlaceInTheDocs(t *testing.T) {
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	docs, err := os.ReadFile("../docs/messages.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range Reasons() {
		if !strings.Contains(all.String(), "cause: "+string(r)) && !strings.Contains(all.String(), "warning: "+string(r)) {
			t.Errorf("no answer with reason %s", r)
		}
		if !strings.Contains(string(docs), "## "+string(r)+"\n") {
			t.Errorf("docs/messages.md does not explain %s", r)
		}
	}
}
