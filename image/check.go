package image

import (
	"fmt"
	"path/filepath"

	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/types"
)

// Check looks at the files that the settings name, as a pull would, and says what
// is wrong with them, by file.
func Check(o Settings) []string {
	var wrong []string
	if _, err := policyOf(&types.SystemContext{SignaturePolicyPath: o.PolicyPath}); err != nil {
		wrong = append(wrong, fmt.Sprintf("no image can be pulled or run: policy: %v", err))
	}
	if o.PolicyDir != "" {
		files, _ := filepath.Glob(filepath.Join(o.PolicyDir, "*.json")) // the only error is of the pattern
		for _, file := range files {
			if _, err := signature.NewPolicyFromFile(file); err != nil {
				wrong = append(wrong, fmt.Sprintf("no image can be pulled for, or run in, the namespace: %s: %v", file, err))
			}
		}
	}
	for _, file := range hostsFiles(o.HostsDirs) {
		h, err := readHosts(file, filepath.Base(filepath.Dir(file)))
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("no image of that registry can be pulled: %v", err))
			continue
		}
		for _, p := range h.problems {
			wrong = append(wrong, fmt.Sprintf("%s: %s", file, p))
		}
	}
	return wrong
}
