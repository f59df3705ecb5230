package blob

import (
	"encoding/json"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// annotationPrefixes are of what is kept: by them an image says that it is the
// checkpoint of a container, and which.
var annotationPrefixes = []string{"org.criu.checkpoint.", "io.kubernetes.cri-o.annotations.checkpoint."}

// maxAnnotation bounds what is kept of one, in bytes: a manifest may have megabytes.
const maxAnnotation = 4096

// CheckpointAnnotations are those annotations of the manifest data that say of what
// container it is a checkpoint; nil = none.
func CheckpointAnnotations(data []byte) map[string]string {
	var m v1.Manifest
	if json.Unmarshal(data, &m) != nil {
		return nil // of another kind
	}
	var kept map[string]string
	for key, value := range m.Annotations {
		for _, prefix := range annotationPrefixes {
			if strings.HasPrefix(key, prefix) && len(key)+len(value) <= maxAnnotation {
				if kept == nil {
					kept = make(map[string]string)
				}
				kept[key] = value
			}
		}
	}
	return kept
}
