package allocator

// Features control optional parts of the allocation, with the names that upstream's
// structured allocator uses. The package knows no feature gates: the caller maps them.
//
// Source: k8s.io/dynamic-resource-allocation/structured/internal/types.go (v0.37).
type Features struct {
	AdminAccess             bool // DRAAdminAccess
	CompatibilityGroups     bool // DRADeviceCompatibilityGroups
	ConsumableCapacity      bool // DRAConsumableCapacity
	DerivedAttributes       bool // DRADerivedAttributes
	DeviceBindingAndStatus  bool // DRADeviceBindingConditions and DRAResourceClaimDeviceStatus
	DeviceTaints            bool // DRADeviceTaints
	FractionalCapacityRange bool // DRAFractionalCapacityRange
	ListTypeAttributes      bool // DRAListTypeAttributes
	OptionalNodeOperations  bool // DRAOptionalNodeOperations
	PartitionableDevices    bool // DRAPartitionableDevices
	PrioritizedList         bool // DRAPrioritizedList
}

// DefaultFeatures returns what kube-scheduler 1.37 passes with its default feature gates.
func DefaultFeatures() Features {
	return Features{
		AdminAccess:             true,
		ConsumableCapacity:      true,
		DeviceBindingAndStatus:  true,
		DeviceTaints:            true,
		FractionalCapacityRange: true,
		PartitionableDevices:    true,
		PrioritizedList:         true,
	}
}

// AllFeatures returns all features switched on, also those that are alpha in 1.37.
func AllFeatures() Features {
	f := DefaultFeatures()
	f.CompatibilityGroups = true
	f.DerivedAttributes = true
	f.ListTypeAttributes = true
	f.OptionalNodeOperations = true
	return f
}
