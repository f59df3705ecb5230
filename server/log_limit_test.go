package server

import (
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/crilog"
)

// A client gives a container's log its limit by annotations. One that is wrong is named in the error, and
// no container is made: a log without the limit would fill the disk.
func TestLogLimit(t *testing.T) {
	n := newNode(t)
	sb := n.run(t, pod("web"))
	for name, c := range map[string]struct {
		size, files string // "" = absent
		want        crilog.Limit
		wrong       string // in the error; "" = none
	}{
		"none":     {},
		"both":     {size: "5000", files: "3", want: crilog.Limit{Size: 5000, Files: 3}},
		"size":     {size: "4096", want: crilog.Limit{Size: 4096, Files: 5}},
		"files":    {files: "3"},
		"largest":  {size: "1099511627776", files: "1000", want: crilog.Limit{Size: 1 << 40, Files: 1000}},
		"small":    {size: "4095", wrong: `annotation io.crisp.log.max-size: "4095" is not a number from 4096 to 1099511627776`},
		"unit":     {size: "10Mi", wrong: `annotation io.crisp.log.max-size: "10Mi"`},
		"huge":     {size: "99999999999999999999", wrong: "io.crisp.log.max-size"},
		"one file": {size: "5000", files: "1", wrong: `annotation io.crisp.log.max-files: "1" is not a number from 2 to 1000`},
	} {
		t.Run(name, func(t *testing.T) {
			config := forever(strings.ReplaceAll(name, " ", "-"))
			config.Annotations = map[string]string{}
			for key, value := range map[string]string{crilog.AnnotationSize: c.size, crilog.AnnotationFiles: c.files} {
				if value != "" {
					config.Annotations[key] = value
				}
			}
			resp, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: config})
			if c.wrong != "" {
				if wantCode(t, name, err, "InvalidArgument"); err != nil && (!strings.Contains(err.Error(), c.wrong) || !strings.Contains(err.Error(), "container "+config.Metadata.Name)) {
					t.Errorf("the error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if made, err := n.runtime.Container(resp.ContainerId); err != nil || made.Config().LogLimit != c.want {
				t.Errorf("the limit is %+v, %v; want %+v", made.Config().LogLimit, err, c.want)
			}
		})
	}
}
