package harness

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Controllers are the controllers of kube-controller-manager that matter to device claims.
// They run without kubelets.
const Controllers = "resourceclaim-controller,namespace-controller,garbage-collector-controller," +
	"serviceaccount-controller,resourcequota-controller,deployment-controller,replicaset-controller,job-controller"

// Process is a control plane component that runs beside the API server.
type Process struct {
	name string
	cmd  *exec.Cmd
	log  *logBuffer
	done chan struct{}
}

// StartControllerManager starts the real kube-controller-manager. Extra flags win over the
// harness's own.
func (c *ControlPlane) StartControllerManager(extra ...string) (*Process, error) {
	return c.startComponent("kube-controller-manager", append([]string{"--kubeconfig=" + c.Kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--use-service-account-credentials=false", "--concurrent-gc-syncs=2", "--controllers=" + Controllers}, extra...)...)
}

// StartScheduler starts the real kube-scheduler as system:kube-scheduler. Extra flags win over
// the harness's own.
func (c *ControlPlane) StartScheduler(extra ...string) (*Process, error) {
	_, kubeconfig, err := c.User("system:kube-scheduler", "system:authenticated")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(c.Dir, "scheduler.kubeconfig")
	if err := os.WriteFile(path, kubeconfig, 0o600); err != nil {
		return nil, err
	}
	return c.startComponent("kube-scheduler", append([]string{"--kubeconfig=" + path, "--authentication-kubeconfig=" + path,
		"--authorization-kubeconfig=" + path, "--leader-elect=false", "--secure-port=0"}, extra...)...)
}

func (c *ControlPlane) startComponent(name string, args ...string) (*Process, error) {
	return startProcess(name, filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), name), args...)
}

// Stop ends the component.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
		return nil
	case <-time.After(20 * time.Second):
		p.kill()
		return errors.New(p.name + " did not end in 20 s after SIGTERM")
	}
}

// kill ends the component at once.
func (p *Process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// Log returns what the component printed.
func (p *Process) Log() string { return p.log.String() }
