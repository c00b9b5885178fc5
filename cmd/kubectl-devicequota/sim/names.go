package sim

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/devicequota/devicequota/quota"
)

// podName returns base-suffix; like the API server's own names it is cut where it would be too long.
func podName(base, suffix string) string {
	const most = validation.DNS1123SubdomainMaxLength
	if len(suffix) > most/2 {
		suffix = suffix[:most/2]
	}
	if over := len(base) + 1 + len(suffix) - most; over > 0 {
		base = base[:len(base)-over]
	}
	return strings.TrimRight(base, "-.") + "-" + strings.TrimRight(suffix, "-.")
}

// freeName returns n, or n with a number behind it when there is an object of that name:
// controllers append random letters until a name is free.
func (c *Cluster) freeName(component quota.Component, namespace, n string) string {
	free := n
	for i := 2; c.state.get(component, namespace, free) != nil; i++ {
		free = podName(n, strconv.Itoa(i))
	}
	return free
}
