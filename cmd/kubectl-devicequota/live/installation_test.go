package live

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func pemOf(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }

// issued is a certificate with what it takes to serve it.
type issued struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue makes a certificate that begins an hour before now and ends then; of itself when by is nil.
func issue(t *testing.T, by *issued, end time.Time, names ...string) *issued {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.Add(-2000 * time.Hour), NotAfter: end,
		IsCA: by == nil, BasicConstraintsValid: true, DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	parent, signer := template, k
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &k.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &issued{cert, k}
}

// authority returns a caBundle of a certificate that ends then.
func authority(t *testing.T, end time.Time) []byte { return pemOf(issue(t, nil, end).cert.Raw) }

func TestCertificatesThatEndAreFound(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		bundle []byte
		want   Level
	}{
		"none":          {nil, Error},
		"no PEM":        {[]byte("x"), Error},
		"ended":         {authority(t, now.Add(-time.Hour)), Error},
		"ends soon":     {authority(t, now.Add(time.Hour)), Warning},
		"ends later":    {authority(t, now.Add(1000*time.Hour)), ""},
		"one of two is": {slices.Concat(authority(t, now.Add(-time.Hour)), authority(t, now.Add(1000*time.Hour))), ""},
	} {
		f := certificate(c.bundle, now)
		if c.want == "" && f != nil || c.want != "" && (f == nil || f.Level != c.want) {
			t.Errorf("%s: got %+v, want level %q", name, f, c.want)
		}
	}
}

// texts are the findings without what differs between runs.
func texts(findings []Finding) []string {
	var out []string
	for _, f := range findings {
		text := f.Message
		for _, cut := range []string{" on ", " until ", " before ", ": "} {
			text, _, _ = strings.Cut(text, cut)
		}
		out = append(out, string(f.Level)+": "+text)
	}
	return out
}

func TestServingCertificatesMustBeWhatTheAPIServerTakes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	later := now.Add(1000 * time.Hour)
	ca := issue(t, nil, later)
	const host = "devicequota.ns.svc"
	for name, c := range map[string]struct {
		leaf   *issued
		bundle []byte
		want   []string
	}{
		"fine":                 {issue(t, ca, later, host), pemOf(ca.cert.Raw), []string{"info: valid"}},
		"ended":                {issue(t, ca, now.Add(-time.Hour), host), pemOf(ca.cert.Raw), []string{"error: the serving certificate expired"}},
		"ends soon":            {issue(t, ca, now.Add(time.Hour), host), pemOf(ca.cert.Raw), []string{"warning: the serving certificate expires"}},
		"not yet":              {issue(t, ca, now.Add(3000*time.Hour), host), pemOf(ca.cert.Raw), []string{"error: the serving certificate is not valid"}},
		"another name":         {issue(t, ca, later, "other.ns.svc"), pemOf(ca.cert.Raw), []string{"error: the serving certificate is for other names"}},
		"another authority":    {issue(t, ca, later, host), authority(t, later), []string{"error: caBundle does not vouch for the serving certificate"}},
		"everything is wrong":  {issue(t, ca, now.Add(-time.Hour), "x"), nil, []string{"error: the serving certificate expired", "error: the serving certificate is for other names"}},
		"the authority itself": {issue(t, nil, later, host), pemOf(ca.cert.Raw), []string{"error: caBundle does not vouch for the serving certificate"}},
	} {
		if c.bundle == nil {
			c.bundle = []byte("x")
		}
		got := verify(host, []*x509.Certificate{c.leaf.cert}, c.bundle, now)
		if diff := cmp.Diff(c.want, texts(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s\n%+v", name, diff, got)
		}
	}
	if got := verify(host, nil, nil, now); len(got) != 1 || got[0].Level != Error {
		t.Errorf("no certificate: got %+v", got)
	}
}

// serve shows the certificate on loopback and returns the port.
func serve(t *testing.T, leaf *issued) int32 {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.cert.Raw}, PrivateKey: leaf.key}}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // doctor hangs up after the handshake
	s.StartTLS()
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return int32(n)
}

// The certificate is looked at where it can be seen: through the Service, else in its Secret.
func TestServingCertificatesAreFound(t *testing.T) {
	t.Parallel()
	later := time.Now().Add(1000 * time.Hour)
	ca := issue(t, nil, later)
	leaf := issue(t, ca, later, "hook.ns.svc")
	port := serve(t, leaf)
	closed := serveNothing(t)
	hooks := func(port int32) []hook {
		h := hook{"v, x", admissionregistrationv1.WebhookClientConfig{CABundle: pemOf(ca.cert.Raw),
			Service: &admissionregistrationv1.ServiceReference{Namespace: "ns", Name: "hook", Port: &port, Path: ptr.To("/x")}}}
		return []hook{h, h}
	}
	atURL := hooks(port)[:1]
	atURL[0].client.Service, atURL[0].client.URL = nil, ptr.To("https://127.0.0.1:"+strconv.Itoa(int(port))+"/x")
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hook"}, Spec: corev1.ServiceSpec{ClusterIP: "127.0.0.1"}}
	secret := func(of *issued) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s" + of.cert.NotAfter.Format("05")}, Data: map[string][]byte{corev1.TLSCertKey: pemOf(of.cert.Raw)}}
	}
	for name, c := range map[string]struct {
		hooks     []hook
		objects   []client.Object
		forbidden bool
		want      []string
	}{
		"through the Service": {hooks(port), []client.Object{service}, false, []string{"info: valid"}},
		"in the Secret":       {hooks(closed), []client.Object{service, secret(leaf), secret(issue(t, nil, later.Add(time.Hour+time.Second), "other.ns.svc"))}, false, []string{"info: valid"}},
		"nowhere":             {hooks(closed), []client.Object{service}, false, []string{"info: the serving certificate cannot be seen from here"}},
		"no Service":          {hooks(closed), nil, false, []string{"info: the serving certificate cannot be seen from here"}},
		"not allowed":         {hooks(closed), []client.Object{service, secret(leaf)}, true, []string{"info: the serving certificate cannot be seen from here"}},
		"at a URL":            {atURL, nil, false, []string{"error: the serving certificate is for other names"}},
	} {
		r := newReader(t, func(list client.ObjectList, _ string) bool {
			_, secrets := list.(*corev1.SecretList)
			return c.forbidden && secrets
		}, c.objects...)
		got := r.serving(t.Context(), c.hooks, time.Now())
		if diff := cmp.Diff(c.want, texts(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s\n%+v", name, diff, got)
		}
	}
}

// serveNothing returns a port on which nobody listens.
func serveNothing(t *testing.T) int32 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tcp, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("no TCP address")
	}
	return int32(tcp.Port)
}

func object(apiVersion, kind, name string, fields map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: fields}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetName(name)
	return u
}

func toUnstructured(t *testing.T, obj any) map[string]any {
	t.Helper()
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestTheInstallationIsLookedAt(t *testing.T) {
	t.Parallel()
	bundle := authority(t, time.Now().Add(1000*time.Hour))
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	for _, path := range []string{"/validate-resourceclaim", "/validate-resourceclaimtemplate", "/validate-pod-resourceclaims", "/validate-pod-extendedresources"} {
		config.Webhooks = append(config.Webhooks, admissionregistrationv1.ValidatingWebhook{Name: "x.devicequota.io",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: bundle, Service: &admissionregistrationv1.ServiceReference{Namespace: "ns", Name: "hook", Path: &path}}})
	}
	config.Webhooks = append(config.Webhooks, admissionregistrationv1.ValidatingWebhook{Name: "other.example.com"})
	config.Webhooks[0].ClientConfig.CABundle = nil
	validating := object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "v", toUnstructured(t, config))
	dangling := object("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", "devicequota", map[string]any{
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Dangling", "status": "True", "message": "no such level"}}}})
	scheme := runtime.NewScheme()
	for _, gvk := range []schema.GroupVersionKind{validating.GroupVersionKind(), dangling.GroupVersionKind(),
		{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration"},
		{Group: "apps", Version: "v1", Kind: "Deployment"},
		{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"}} {
		scheme.AddKnownTypeWithName(gvk, &unstructured.Unstructured{})
		scheme.AddKnownTypeWithName(gvk.GroupVersion().WithKind(gvk.Kind+"List"), &unstructured.UnstructuredList{})
	}
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	r := newReader(t, func(client.ObjectList, string) bool { return false })
	r.Client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(validating, dangling).Build()
	platform, got := r.Installation(t.Context())
	want := []Finding{
		{Info, "version", "resource.k8s.io", "v1"},
		{Info, "platform", "", "Kubernetes"},
		{Error, "certificate", "validatingwebhookconfiguration v, x.devicequota.io", "caBundle is empty: the API server cannot call the webhook"},
		{Error, "webhook", "ValidatingWebhookConfiguration", "no webhook calls /validate-clusterresourcequota"},
		{Warning, "webhook", "MutatingWebhookConfiguration", "no webhook calls /mutate-resourceclaim"},
		{Warning, "webhook", "MutatingWebhookConfiguration", "no webhook calls /mutate-resourceclaimtemplate"},
		{Info, "certificate", "hook.ns.svc", `the serving certificate cannot be seen from here: services "hook" not found; no Secret of "ns" has a certificate for it`},
		{Info, "certificate", "hook.ns.svc", `the serving certificate cannot be seen from here: services "hook" not found; no Secret of "ns" has a certificate for it`},
		{Error, "flowschema", "devicequota", "is not in force: no such level"},
		{Warning, "flowschema", "system:serviceaccount:devicequota-system:devicequota", "no FlowSchema catches the manager's writes: under load they queue behind the creates that wait for them"},
	}
	if diff := cmp.Diff(want, got); diff != "" || platform == OpenShift {
		t.Errorf("platform %s, findings (-want +got):\n%s", platform, diff)
	}
}

// flowSchema catches what the subject does to the resource.
func flowSchema(name string, precedence int32, subject flowcontrolv1.Subject, resource string) flowcontrolv1.FlowSchema {
	return flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: flowcontrolv1.FlowSchemaSpec{
		MatchingPrecedence: precedence, PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "level"},
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{Subjects: []flowcontrolv1.Subject{subject}, ResourceRules: []flowcontrolv1.ResourcePolicyRule{
			{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{resource}, ClusterScope: true}}}}}}
}

func TestTheFlowSchemaInForceIsFound(t *testing.T) {
	t.Parallel()
	account := func(n string) flowcontrolv1.Subject {
		return flowcontrolv1.Subject{Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: "devicequota-system", Name: n}}
	}
	group := func(n string) flowcontrolv1.Subject {
		return flowcontrolv1.Subject{Kind: "Group", Group: &flowcontrolv1.GroupSubject{Name: n}}
	}
	user := func(n string) flowcontrolv1.Subject {
		return flowcontrolv1.Subject{Kind: "User", User: &flowcontrolv1.UserSubject{Name: n}}
	}
	ours := flowSchema("devicequota", 500, account("devicequota"), "*")
	accounts := flowSchema("service-accounts", 9000, group("system:serviceaccounts"), "*")
	namespaced := flowSchema("a", 1, account("*"), "*")
	namespaced.Spec.Rules[0].ResourceRules[0].ClusterScope = false
	dangling := flowSchema("a", 1, account("*"), "*")
	dangling.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionTrue}}
	const inForceText, before = `info: FlowSchema "devicequota" is in force`, `warning: FlowSchema "a" (precedence`
	for name, c := range map[string]struct {
		schemas []flowcontrolv1.FlowSchema
		want    string
	}{
		"ours alone":                      {[]flowcontrolv1.FlowSchema{ours, accounts}, inForceText},
		"others come later":               {[]flowcontrolv1.FlowSchema{accounts, ours, flowSchema("z", 500, account("*"), "*")}, inForceText},
		"others are about other objects":  {[]flowcontrolv1.FlowSchema{ours, flowSchema("a", 1, account("*"), "pods"), namespaced}, inForceText},
		"others are about other accounts": {[]flowcontrolv1.FlowSchema{ours, flowSchema("a", 1, account("x"), "*"), flowSchema("b", 1, group("system:masters"), "*"), flowSchema("c", 1, user("x"), "*")}, inForceText},
		"others do not count":             {[]flowcontrolv1.FlowSchema{ours, dangling}, inForceText},
		"another comes first":             {[]flowcontrolv1.FlowSchema{ours, flowSchema("a", 499, account("*"), "*")}, before},
		"a name decides":                  {[]flowcontrolv1.FlowSchema{ours, flowSchema("a", 500, account("devicequota"), "deviceledgers")}, before},
		"a group comes first":             {[]flowcontrolv1.FlowSchema{ours, flowSchema("a", 100, group("system:authenticated"), "*")}, before},
		"everybody comes first":           {[]flowcontrolv1.FlowSchema{ours, flowSchema("a", 100, user("*"), "*")}, before},
		"ours is about somebody else":     {[]flowcontrolv1.FlowSchema{flowSchema("devicequota", 500, account("x"), "*"), accounts}, "warning: none of its own"},
		"none of ours":                    {[]flowcontrolv1.FlowSchema{accounts}, "warning: none of its own"},
		"none":                            {nil, "warning: no FlowSchema catches the manager's writes"},
	} {
		got := inForce(c.schemas, []identity{defaultIdentity})
		if len(got) != 1 || !strings.HasPrefix(string(got[0].Level)+": "+got[0].Message, c.want) {
			t.Errorf("%s: want %q, got %+v", name, c.want, got)
		}
	}
}
