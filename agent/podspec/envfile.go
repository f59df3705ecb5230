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

// MaxEnvFile bounds what is read of a file that containers have written, in bytes.
const MaxEnvFile = 1 << 20

// fileValue is the value of a key in a file of an emptyDir, which init containers or
// others have written; "" is a key that is not there, as by the kubelet.
func (r References) fileValue(pod *v1.Pod, ref *v1.FileKeySelector) (string, error) {
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == ref.VolumeName && v.EmptyDir != nil }) {
		return "", fmt.Errorf("volume %s is no emptyDir", ref.VolumeName)
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

// readEnvFile finds a key among lines of NAME='value'. Values are in single quotes,
// mean what they are and may go over several lines; a # begins a comment at the
// beginning of a line or behind a value. It is a subset of what a shell reads
// (Kubernetes' EnvFiles). A blank before the quote makes the value empty.
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
			return "", fmt.Errorf("line %d: there is no name right before the =", n)
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
					return "", fmt.Errorf("line %d: there is more behind the value", n)
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
