package quota

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Subject is what a key counts.
type Subject int

const (
	// SubjectClaims counts claim objects.
	SubjectClaims Subject = iota
	// SubjectClass counts what is requested through a DeviceClass.
	SubjectClass
	// SubjectExtendedResource counts the devices of the classes that serve an extended resource.
	SubjectExtendedResource
	// SubjectSelector counts what matches a CEL device selector, through whatever class.
	SubjectSelector
)

// Measure is the unit that a key counts in.
type Measure int

const (
	// MeasureObjects counts objects.
	MeasureObjects Measure = iota
	// MeasureDevices counts devices.
	MeasureDevices
	// MeasureCapacity sums a capacity.
	MeasureCapacity
	// MeasureCounter sums a counter, over all counter sets.
	MeasureCounter
)

// Parts of the keys. The first four are Kubernetes' own.
const (
	// ClaimsKey counts claim objects.
	ClaimsKey corev1.ResourceName = "count/resourceclaims.resource.k8s.io"

	requestsPrefix       = corev1.DefaultResourceRequestsPrefix                                                // requests.
	platformClassSuffix  = corev1.ResourceClaimsPerClass                                                       // .deviceclass.resource.k8s.io/devices
	implicitPrefix       = resourceapi.ResourceDeviceClassPrefix                                               // deviceclass.resource.kubernetes.io/
	nativeDomain         = corev1.ResourceDefaultNamespacePrefix                                               // kubernetes.io/
	ourDomain            = "devicequota.io"                                                                    // the domain of our keys
	classDomainSuffix    = ".deviceclass." + ourDomain                                                         // <class>.deviceclass.devicequota.io
	selectorDomainSuffix = ".selector." + ourDomain                                                            // <selector>.selector.devicequota.io
	devicesMeasure       = "devices"                                                                           // number of devices
	capacityPrefix       = "capacity."                                                                         // sum of a capacity
	counterPrefix        = "counter."                                                                          // sum of a counter
	storageClassSuffix   = ".storageclass.storage.k8s.io/"                                                     // another kind of key that may begin with "requests."
	measureGrammar       = `want "devices", "capacity.<name>", "capacity.<domain>_<name>" or "counter.<name>"` // for messages
)

// Key is a parsed name in spec.quota.hard.
type Key struct {
	// Name as written in spec.quota.hard.
	Name    corev1.ResourceName
	Subject Subject
	// Class is the DeviceClass of a SubjectClass key.
	Class string
	// ExtendedResource of a SubjectExtendedResource key, without "requests.".
	ExtendedResource corev1.ResourceName
	// Selector is the selector's name of a SubjectSelector key.
	Selector string
	Measure  Measure
	// Of is the capacity or counter: "id" for the driver's own domain, else "domain/id".
	Of resourceapi.QualifiedName
	// Platform is true for Kubernetes' own keys.
	Platform bool
}

// ParseKey reads a name in spec.quota.hard. ours is false for names that are not about
// devices. The error tells why a name that is about devices can limit nothing.
// Source: DESIGN of the keys in the package documentation; Kubernetes' own keys are those of
// pkg/quota/v1/evaluator/core/resource_claims.go (v1.37).
func ParseKey(name corev1.ResourceName) (key Key, ours bool, err error) {
	s := string(name)
	key = Key{Name: name}
	if name == ClaimsKey {
		key.Subject, key.Measure, key.Platform = SubjectClaims, MeasureObjects, true
		return key, true, nil
	}
	domain, measure, _ := strings.Cut(s, "/")
	switch {
	case domain == ourDomain || strings.HasSuffix(domain, "."+ourDomain):
		key, err = parseOurs(key, domain, measure)
		return key, true, err
	case strings.HasSuffix(s, platformClassSuffix):
		key.Subject, key.Measure, key.Platform = SubjectClass, MeasureDevices, true
		key.Class = strings.TrimSuffix(s, platformClassSuffix)
		return key, true, wholeName(name, checkName("class", key.Class))
	case strings.HasPrefix(s, requestsPrefix):
		return parseRequests(key, strings.TrimPrefix(s, requestsPrefix))
	}
	return key, false, nil
}

// String returns the key as it is written in spec.quota.hard; ParseKey reads it back.
func (k Key) String() string {
	measure := devicesMeasure
	switch k.Measure {
	case MeasureObjects:
		return string(ClaimsKey)
	case MeasureCapacity:
		measure = capacityPrefix + strings.Replace(string(k.Of), "/", "_", 1)
	case MeasureCounter:
		measure = counterPrefix + string(k.Of)
	}
	switch k.Subject {
	case SubjectExtendedResource:
		return requestsPrefix + string(k.ExtendedResource)
	case SubjectSelector:
		return k.Selector + selectorDomainSuffix + "/" + measure
	}
	if k.Platform {
		return k.Class + platformClassSuffix
	}
	return k.Class + classDomainSuffix + "/" + measure
}

// parseRequests reads requests.<extended resource>; native resources such as requests.cpu are not ours.
func parseRequests(key Key, resource string) (Key, bool, error) {
	class, implicit := strings.CutPrefix(resource, implicitPrefix)
	switch {
	case implicit:
	case !strings.Contains(resource, "/"), strings.Contains(resource, nativeDomain), strings.Contains(resource, storageClassSuffix):
		return key, false, nil
	}
	key.Subject, key.Measure, key.Platform = SubjectExtendedResource, MeasureDevices, true
	key.ExtendedResource = corev1.ResourceName(resource)
	if implicit {
		return key, true, wholeName(key.Name, checkName("class", class))
	}
	return key, true, wholeName(key.Name, nil)
}

func parseOurs(key Key, domain, measure string) (Key, error) {
	var err error
	if class, ok := strings.CutSuffix(domain, classDomainSuffix); ok {
		key.Subject, key.Class = SubjectClass, class
		err = checkName("class", class)
	} else if selector, ok := strings.CutSuffix(domain, selectorDomainSuffix); ok {
		key.Subject, key.Selector = SubjectSelector, selector
		err = checkName("selector", selector)
		if err == nil && len(selector) > validation.DNS1123LabelMaxLength {
			// The expression's annotation could not be named after it.
			err = fmt.Errorf("selector %q is longer than %d characters", selector, validation.DNS1123LabelMaxLength)
		}
	} else {
		err = fmt.Errorf("want <class>%s/<measure> or <selector>%s/<measure>", classDomainSuffix, selectorDomainSuffix)
	}
	if err != nil {
		return key, err
	}
	key.Measure, key.Of, err = parseMeasure(measure)
	return key, wholeName(key.Name, err)
}

func parseMeasure(s string) (Measure, resourceapi.QualifiedName, error) {
	if s == devicesMeasure {
		return MeasureDevices, "", nil
	}
	if name, ok := strings.CutPrefix(s, counterPrefix); ok {
		if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
			return 0, "", fmt.Errorf("counter %q: %s", name, errs[0])
		}
		return MeasureCounter, resourceapi.QualifiedName(name), nil
	}
	name, ok := strings.CutPrefix(s, capacityPrefix)
	if !ok {
		return 0, "", fmt.Errorf("unknown measure %q: %s", s, measureGrammar)
	}
	of, err := parseCapacity(name)
	return MeasureCapacity, of, err
}

// parseCapacity reads "id" or "domain_id". An id may contain underscores itself, but neither
// dots nor dashes: what stands before the first underscore is a domain if it has one of them.
func parseCapacity(s string) (resourceapi.QualifiedName, error) {
	id, of := s, s
	if domain, rest, ok := strings.Cut(s, "_"); ok && strings.ContainsAny(domain, ".-") {
		if errs := validation.IsDNS1123Subdomain(domain); len(errs) > 0 {
			return "", fmt.Errorf("domain %q: %s", domain, errs[0])
		}
		if len(domain) > resourceapi.DeviceMaxDomainLength {
			return "", fmt.Errorf("domain %q is longer than %d characters", domain, resourceapi.DeviceMaxDomainLength)
		}
		id, of = rest, domain+"/"+rest
	}
	if errs := validation.IsCIdentifier(id); len(errs) > 0 {
		return "", fmt.Errorf("capacity %q: %s", id, errs[0])
	}
	if len(id) > resourceapi.DeviceMaxIDLength {
		return "", fmt.Errorf("capacity %q is longer than %d characters", id, resourceapi.DeviceMaxIDLength)
	}
	return resourceapi.QualifiedName(of), nil
}

func checkName(what, name string) error {
	if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
		return fmt.Errorf("%s %q: %s", what, name, errs[0])
	}
	return nil
}

// wholeName checks the rules that hold for every resource name, unless there is an error already.
func wholeName(name corev1.ResourceName, err error) error {
	if err != nil {
		return err
	}
	if errs := validation.IsQualifiedName(string(name)); len(errs) > 0 {
		return fmt.Errorf("not a qualified name: %s", errs[0])
	}
	return nil
}
