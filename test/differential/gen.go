package differential

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/structured"
)

type quantity = resource.Quantity

const (
	sharedDomain = "topology.example.com"
	// nodeOperations is the declared feature that a node needs for slices that skip node operations.
	nodeOperations = "DRAOptionalNodeOperations"
)

// gen draws one case. The chances are chosen so that about half of the cases fit.
type gen struct {
	*rand.Rand
	c *Case
	// wild adds what the API server would reject but an allocator may still meet.
	wild    bool
	drivers []string
	budget  int // devices that may still be added
}

// Generate returns the case of the seed: the same one for the same seed, always.
func Generate(seed uint64) *Case {
	g := &gen{Rand: rand.New(rand.NewPCG(seed, 0x6471)), c: &Case{Seed: seed}, budget: 12}
	g.wild = g.p(6)
	g.c.Wild = g.wild
	g.features()
	g.drivers = []string{"a.example.com", "b.example.com"}[:1+g.weighted(65, 35)]
	g.nodes()
	g.classes()
	for i := range 1 + g.weighted(2, 4, 3) {
		g.pool(i)
	}
	slices.SortFunc(g.c.Slices, func(a, b *resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	g.allocated()
	for i := range g.weighted(65, 27, 8) + 1 {
		g.c.Claims = append(g.c.Claims, g.claim(i))
	}
	return g.c
}

// p is true in percent of all draws.
func (g *gen) p(percent int) bool { return g.IntN(100) < percent }

// weighted returns an index with a chance in proportion to its weight.
func (g *gen) weighted(weights ...int) int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	n := g.IntN(sum)
	for i, w := range weights {
		if n < w {
			return i
		}
		n -= w
	}
	return len(weights) - 1
}

func pick[T any](g *gen, values ...T) T { return values[g.IntN(len(values))] }

func ptr[T any](v T) *T { return &v }

func (g *gen) features() {
	switch g.weighted(70, 20, 10) {
	case 0:
		g.c.Features = AllowAll()
	case 1:
		g.c.Features = Default137()
	case 2:
		b := func() bool { return !g.p(25) }
		g.c.Features = structured.Features{
			AdminAccess: b(), CompatibilityGroups: b(), ConsumableCapacity: b(), DerivedAttributes: b(),
			DeviceBindingAndStatus: b(), DeviceTaints: b(), FractionalCapacityRange: b(), ListTypeAttributes: b(),
			OptionalNodeOperations: b(), PartitionableDevices: b(), PrioritizedList: b(),
		}
	}
}

func (g *gen) nodes() {
	for i := range 1 + g.weighted(6, 3, 1) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:   fmt.Sprintf("n%d", i),
			Labels: map[string]string{"zone": fmt.Sprintf("z%d", i%2), "kubernetes.io/hostname": fmt.Sprintf("n%d", i)},
		}}
		if g.p(50) {
			node.Status.DeclaredFeatures = []string{nodeOperations}
		}
		g.c.Nodes = append(g.c.Nodes, node)
	}
}

func (g *gen) classes() {
	for i := range 1 + g.IntN(3) {
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("class%d", i)}}
		if i > 0 && g.p(70) || g.p(20) {
			class.Spec.Selectors = g.selectors(true)
		}
		for j := range g.weighted(6, 3, 1) {
			class.Spec.Config = append(class.Spec.Config, resourceapi.DeviceClassConfiguration{
				DeviceConfiguration: opaque(g.drivers[0], fmt.Sprintf(`{"class":%d,"config":%d}`, i, j)),
			})
		}
		g.c.Classes = append(g.c.Classes, class)
	}
}

func opaque(driver, json string) resourceapi.DeviceConfiguration {
	cfg := resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver}}
	cfg.Opaque.Parameters.Raw = []byte(json)
	return cfg
}

// selectors draws at most two expressions; those of a class err less often.
func (g *gen) selectors(class bool) []resourceapi.DeviceSelector {
	var out []resourceapi.DeviceSelector
	n := g.weighted(62, 32, 6)
	for range n {
		out = append(out, celSelector(g.expression(class)))
	}
	if g.wild && g.p(3) {
		out = append(out, resourceapi.DeviceSelector{})
	}
	return out
}

func celSelector(expression string) resourceapi.DeviceSelector {
	return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}
}

func (g *gen) expression(class bool) string {
	d := pick(g, g.drivers...)
	safe := []string{
		"true",
		fmt.Sprintf("device.driver == %q", d),
		fmt.Sprintf("'model' in device.attributes[%q] && device.attributes[%q].model == %q", d, d, pick(g, "A", "B")),
		fmt.Sprintf("!('numa' in device.attributes[%q]) || device.attributes[%q].numa == %d", d, d, g.IntN(2)),
		fmt.Sprintf("!('healthy' in device.attributes[%q]) || device.attributes[%q].healthy", d, d),
		fmt.Sprintf("device.attributes[%q].?model.orValue('A') != 'B'", d),
		fmt.Sprintf("!('ver' in device.attributes[%q]) || device.attributes[%q].ver.isGreaterThan(semver('1.0.0'))", d, d),
		fmt.Sprintf("!('memory' in device.capacity[%q]) || device.capacity[%q].memory.compareTo(quantity('%d')) >= 0", d, d, 1+g.IntN(6)),
		"device.allowMultipleAllocations",
		"!device.allowMultipleAllocations",
		fmt.Sprintf("!(%q in device.attributes)", sharedDomain),
		fmt.Sprintf("device.attributes[%q].?numa.orValue(0) == %d", sharedDomain, g.IntN(2)),
		"false",
	}
	erring := []string{
		fmt.Sprintf("device.attributes[%q].model == 'A'", d),
		fmt.Sprintf("device.attributes[%q].numa == %d", d, g.IntN(2)),
		fmt.Sprintf("device.capacity[%q].memory.isGreaterThan(quantity('1'))", d),
		fmt.Sprintf("device.attributes[%q].missing == 1", d),
		"device.attributes[", // does not compile
		"1 + 1",              // not a boolean
	}
	percent := 8
	if class {
		percent = 5
	}
	if g.p(percent) {
		return erring[g.weighted(30, 30, 20, 8, 1, 1)]
	}
	return safe[g.weighted(14, 22, 12, 14, 12, 12, 8, 10, 2, 6, 2, 6, 1)]
}

// qualified returns the name in one of its forms: bare, or with the driver's domain.
func (g *gen) qualified(driver, name string) resourceapi.QualifiedName {
	if g.p(25) {
		return resourceapi.QualifiedName(driver + "/" + name)
	}
	return resourceapi.QualifiedName(name)
}

func nodeSelector(key string, values ...string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}},
	}}}
}

func (g *gen) nodeSelector() *corev1.NodeSelector {
	s := nodeSelector("zone", pick(g, "z0", "z1"))
	switch g.weighted(60, 20, 12, 5, 3) {
	case 1:
		s.NodeSelectorTerms[0].MatchExpressions = append(s.NodeSelectorTerms[0].MatchExpressions, corev1.NodeSelectorRequirement{Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpExists})
	case 2:
		s.NodeSelectorTerms[0].MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{pick(g, g.c.Nodes...).Name}}}
	case 3:
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, nodeSelector("zone", "z1").NodeSelectorTerms...)
	case 4:
		if g.wild {
			s.NodeSelectorTerms[0].MatchExpressions[0].Operator = "Unknown"
		}
	}
	return s
}
