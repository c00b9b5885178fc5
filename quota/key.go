package quota

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Subject is what a key counts.
type Subject int

const (
	// SubjectClaims counts claim objects.
	SubjectClaims Subject = iota
	// SubjectClass counts what is requested through a DeviceClass.
	SubjectClass
	// SubjectExtendedResource counts the devices of the class that serves an extended resource.
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
}
