//go:build requirements

// The imports keep in go.mod what the components need. They are programs, so this
// file is never compiled.
package main

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
)
