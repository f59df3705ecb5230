package server

import (
	"maps"
	"path"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

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
		metadata := pod.config.GetMetadata()
		for key, value := range map[string]string{
			"container-type": "container", "container-name": rec.config.GetMetadata().GetName(), "image-name": rec.image().GetImage(),
			"sandbox-id": sb.ID(), "sandbox-name": metadata.GetName(), "sandbox-namespace": metadata.GetNamespace(), "sandbox-uid": metadata.GetUid(),
		} {
			asked["io.kubernetes.cri."+key] = value
		}
	case built.Hooks == nil:
		return
	default:
		// libcontainer would set properties of the container's scope from
		// these.
		maps.DeleteFunc(asked, func(key, _ string) bool { return strings.HasPrefix(key, "org.systemd.property.") })
	}
	built.Annotations = asked
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
