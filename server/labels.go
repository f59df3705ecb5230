package server

import (
	"context"
	"fmt"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/selinux"
)

func labelOptions(o *cri.SELinuxOption) selinux.Options {
	return selinux.Options{User: o.GetUser(), Role: o.GetRole(), Type: o.GetType(), Level: o.GetLevel()}
}

// podLabels returns the SELinux labels of a sandbox, with a level that stays reserved for it
// until Release.
func (s *Server) podLabels(id string, config *cri.PodSandboxConfig) (selinux.Labels, error) {
	sc := config.GetLinux().GetSecurityContext()
	ns := sc.GetNamespaceOptions()
	host := ns.GetPid() == cri.NamespaceMode_NODE || ns.GetIpc() == cri.NamespaceMode_NODE
	return s.o.SELinux.Pod(id, labelOptions(sc.GetSelinuxOptions()), host)
}

func (s *Server) containerLabels(sb *oci.Sandbox, config *cri.ContainerConfig) (selinux.Labels, error) {
	sc := config.GetLinux().GetSecurityContext()
	return s.o.SELinux.Container(s.index.sandbox(sb).labels, labelOptions(sc.GetSelinuxOptions()), sc.GetPrivileged())
}

// labelFiles gives the files that a sandbox provides to its containers their label.
func labelFiles(ctx context.Context, sb *oci.Sandbox, labels selinux.Labels) error {
	if labels.Mount == "" {
		return nil
	}
	files := sandboxFiles(sb)
	paths := []string{files.Hosts, files.Hostname, files.ResolvConf}
	if !sb.Config().HostIPC {
		paths = append(paths, files.Shm)
	}
	for _, path := range paths {
		if err := selinux.Relabel(ctx, path, labels.Mount, stillWanted(sb)); err != nil {
			return err
		}
	}
	return nil
}

// relabel gives the volumes of a container its mount label, where CRI requests it. The label is
// the pod's, so its containers share the volumes and other pods cannot access them; pods that
// share volumes have the same level in their options. A super privileged container (type spc_t)
// can read everything anyway.
//
// CRI, Mount: "If set, the mount needs SELinux relabeling."
func (d *containerDraft) relabel(ctx context.Context) error {
	if d.labels.Mount == "" || strings.Contains(d.labels.Process, ":spc_t:") {
		return nil
	}
	for _, m := range d.mounts {
		if !m.SelinuxRelabel || m.Image.GetImage() != "" {
			continue // an image is mounted with its label
		}
		err := selinux.Refuse(m.Source)
		if err == nil {
			err = selinux.Relabel(ctx, m.Source, d.labels.Mount, stillWanted(d.sb))
		}
		if err != nil {
			return fmt.Errorf("mount at %s: %w", m.ContainerPath, err)
		}
	}
	return nil
}

// stillWanted returns a function that aborts a long relabelling when the sandbox is stopped.
func stillWanted(sb *oci.Sandbox) func() error {
	return func() error {
		if st := sb.State(); st != oci.SandboxReady && st != oci.SandboxCreating {
			return fault.WrongState.Errorf("sandbox %s is %s", sb.ID(), st)
		}
		return nil
	}
}
