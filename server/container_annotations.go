package server

import (
	"maps"
	"path"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
)

// annotate sets the annotations of a specification. A handler's OCI runtime gets those that
// containerd and CRI-O pass to theirs, and only those of the pod's and the container's own
// annotations that the handler allows, because a runtime may change its behaviour by them. Hooks
// get all of the pod's and the container's, in the state on their stdin. Without a runtime and
// hooks there are none: they can take 256 KiB. The container's annotations override the pod's.
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
		// libcontainer would set properties of the container's scope from these.
		maps.DeleteFunc(asked, func(key, _ string) bool { return strings.HasPrefix(key, "org.systemd.property.") })
	}
	built.Annotations = asked
}

// criPrefix is the prefix of the annotations that containerd adds to its specifications.
const criPrefix = "io.kubernetes.cri."

// containerAnnotations returns containerd's annotations of a container.
func containerAnnotations(sb *oci.Sandbox, pod *sandboxRecord, rec *containerRecord) map[string]string {
	all := criAnnotations("container", sb, pod.config.GetMetadata())
	all[criPrefix+"container-name"] = rec.config.GetMetadata().GetName()
	all[criPrefix+"image-name"] = rec.image().GetImage()
	return all
}

// criAnnotations returns the annotations that containers and sandboxes share.
func criAnnotations(kind string, sb *oci.Sandbox, of *cri.PodSandboxMetadata) map[string]string {
	return map[string]string{
		criPrefix + "container-type": kind, criPrefix + "sandbox-id": sb.ID(), criPrefix + "sandbox-name": of.GetName(),
		criPrefix + "sandbox-namespace": of.GetNamespace(), criPrefix + "sandbox-uid": of.GetUid(),
	}
}

// letsThrough reports whether the handler passes an annotation to its OCI runtime.
func (h Handler) letsThrough(key string) bool {
	for _, pattern := range h.Annotations {
		// As in path.Match, "*" matches any characters but "/".
		if ok, err := path.Match(pattern, key); ok && err == nil {
			return true
		}
	}
	return false
}
