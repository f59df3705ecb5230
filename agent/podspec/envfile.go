package podspec

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
)

// MaxEnvFile is the maximum size of a file of variables, in bytes.
const MaxEnvFile = 1 << 20

// fileValue returns the value of a key in a file that a container has written to an
// emptyDir. As in the kubelet, a missing key and an empty value are the same.
func (r References) fileValue(pod *v1.Pod, ref *v1.FileKeySelector) (string, error) {
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == ref.VolumeName && v.EmptyDir != nil }) {
		return "", fmt.Errorf("volume %s is not an emptyDir", ref.VolumeName)
	}
	file, ok := r.Files[FileRef{ref.VolumeName, ref.Path}]
	if !ok {
		return "", fault.NotFound.Errorf("volume %s: there is no file %s", ref.VolumeName, ref.Path)
	}
	if file.Err != nil {
		return "", file.Err
	}
	value, err := readEnvFile(bytes.NewReader(file.Data), ref.Key)
	if err != nil {
		return "", fmt.Errorf("%s of volume %s: %w", ref.Path, ref.VolumeName, err)
	}
	return value, nil
}

// readEnvFile returns the value of a key in lines of the form NAME='value' (Kubernetes'
// EnvFiles, a subset of what a shell reads); "" if there is none. Values are literal text in
// single quotes and may span lines. A # begins a comment at the start of a line or after a
// value. A blank before the quote makes the value empty.
func readEnvFile(r io.Reader, key string) (string, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, MaxEnvFile)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimLeft(lines.Text(), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, ok := strings.Cut(line, "=")
		switch {
		case !ok:
			return "", fmt.Errorf("line %d: want NAME='value'", n)
		case name == "" || strings.ContainsAny(name, " \t"):
			return "", fmt.Errorf("line %d: want a name right before the =", n)
		}
		if strings.HasPrefix(rest, " ") || strings.HasPrefix(rest, "\t") {
			if name == key {
				return "", nil
			}
			continue
		}
		rest, quoted := strings.CutPrefix(rest, "'")
		if !quoted {
			return "", fmt.Errorf("line %d: the value is not in single quotes", n)
		}
		begin, value := n, ""
		for {
			inside, behind, closed := strings.Cut(rest, "'")
			value += inside
			if closed {
				if behind = strings.TrimLeft(behind, " \t"); behind != "" && behind[0] != '#' {
					return "", fmt.Errorf("line %d: there is text after the value", n)
				}
				break
			}
			value += "\n"
			if !lines.Scan() {
				return "", fmt.Errorf("line %d: the quote is not closed", begin)
			}
			n++
			rest = lines.Text()
		}
		if name == key {
			return value, nil
		}
	}
	return "", lines.Err()
}
