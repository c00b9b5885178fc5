package harness

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kubelets plays the kubelets of all nodes: pods that are bound run, pods that are deleted are gone.
type Kubelets struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// StartKubelets starts playing them.
func (c *ControlPlane) StartKubelets(ctx context.Context) (*Kubelets, error) {
	cl, err := kubernetes.NewForConfig(rest.CopyConfig(c.Config))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	k := &Kubelets{cancel: cancel}
	k.done.Go(func() {
		for ctx.Err() == nil {
			k.watch(ctx, cl)
		}
	})
	return k, nil
}

// Stop ends it.
func (k *Kubelets) Stop() error {
	k.cancel()
	k.done.Wait()
	return nil
}

func (k *Kubelets) watch(ctx context.Context, cl kubernetes.Interface) {
	list, err := cl.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for i := range list.Items {
		k.sync(ctx, cl, &list.Items[i])
	}
	w, err := cl.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && e.Type != watch.Deleted {
			k.sync(ctx, cl, p)
		}
	}
}

// sync does for one pod what its kubelet would; a conflict is answered by the next event.
func (k *Kubelets) sync(ctx context.Context, cl kubernetes.Interface, p *corev1.Pod) {
	if p.Spec.NodeName == "" {
		return
	}
	if p.DeletionTimestamp != nil {
		_ = cl.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &p.UID}})
		return
	}
	if p.Status.Phase == corev1.PodPending {
		p = p.DeepCopy()
		p.Status.Phase = corev1.PodRunning
		_, _ = cl.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	}
}

// Ready makes the nodes schedulable: a Ready condition, room for pods, and no not-ready taint.
func (c *ControlPlane) Ready(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := c.Client.List(ctx, &nodes); err != nil {
		return err
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		n.Spec.Taints = nil
		if err := c.Client.Update(ctx, n); err != nil && !apierrors.IsConflict(err) {
			return err
		}
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(n), n); err != nil {
			return err
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Harness",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
		n.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"),
			corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("250")}
		n.Status.Allocatable = n.Status.Capacity
		if err := c.Client.Status().Update(ctx, n); err != nil {
			return err
		}
	}
	return nil
}
