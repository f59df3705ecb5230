package blob

import (
	"encoding/json"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// annotationPrefixes are the prefixes of the annotations that are kept: they mark an image as a
// container's checkpoint and describe the container.
var annotationPrefixes = []string{"org.criu.checkpoint.", "io.kubernetes.cri-o.annotations.checkpoint."}

// maxAnnotation bounds the kept value of one annotation, in bytes: a manifest may have
// megabytes.
const maxAnnotation = 4096

// CheckpointAnnotations returns the annotations in the manifest data that describe the container
// it is a checkpoint of; nil = none.
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
