package server

import (
	"maps"
	"path"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
)

// annotate gives a specification its annotations. A handler's OCI runtime gets those
// that containerd and CRI-O give theirs, and of the pod's and the container's own those
// that the handler lets through, because there they change how a container is run.
// Hooks get all of these, in the state that they read. With neither a runtime nor hooks
// there are none, as they may take 256 KiB. The container's annotations win over the
// pod's.
func annotate(built *specs.Spec, h Handler, sb *oci.Sandbox, pod *sandboxRecord, rec *containerRecord) {
	asked := map[string]string{}
	maps.Copy(asked, pod.config.GetAnnotations())
	maps.Copy(asked, rec.config.GetAnnotations())
	switch {
	case h.Engine != "":
		maps.DeleteFunc(asked, func(key, _ string) bool { return !h.letsThrough(key) })
		maps.Copy(asked, containerAnnotations(sb, pod, rec))
	case built.Hooks == nil:
		return
	default:
		// libcontainer would set properties of the container's scope from
		// these.
		maps.DeleteFunc(asked, func(key, _ string) bool { return strings.HasPrefix(key, "org.systemd.property.") })
	}
	built.Annotations = asked
}

// criPrefix begins the annotations that containerd gives its specifications.
const criPrefix = "io.kubernetes.cri."

// containerAnnotations returns those of a container.
func containerAnnotations(sb *oci.Sandbox, pod *sandboxRecord, rec *containerRecord) map[string]string {
	all := criAnnotations("container", sb, pod.config.GetMetadata())
	all[criPrefix+"container-name"] = rec.config.GetMetadata().GetName()
	all[criPrefix+"image-name"] = rec.image().GetImage()
	return all
}

// criAnnotations returns those of a container and of a sandbox alike.
func criAnnotations(kind string, sb *oci.Sandbox, of *cri.PodSandboxMetadata) map[string]string {
	return map[string]string{
		criPrefix + "container-type": kind, criPrefix + "sandbox-id": sb.ID(), criPrefix + "sandbox-name": of.GetName(),
		criPrefix + "sandbox-namespace": of.GetNamespace(), criPrefix + "sandbox-uid": of.GetUid(),
	}
}

// letsThrough reports whether the handler's OCI runtime may see an annotation.
func (h Handler) letsThrough(key string) bool {
	for _, pattern := range h.Annotations {
		// As in path.Match, "*" matches any characters but "/".
		if ok, err := path.Match(pattern, key); ok && err == nil {
			return true
		}
	}
	return false
}
