package manifest_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
	v1 "k8s.io/api/core/v1"
)

// Limits name devices: nodes of the host, and vendors' devices by CDI.
func TestDevices(t *testing.T) {
	node := func(host, container, permissions string) []manifest.Device {
		return []manifest.Device{{Host: host, Container: container, Permissions: permissions}}
	}
	for limit, want := range map[string][]manifest.Device{
		"crisp.io/device=/dev/fuse: 1":             node("/dev/fuse", "/dev/fuse", "rwm"),
		"podman.io/device=/dev/fuse: 1":            node("/dev/fuse", "/dev/fuse", "rwm"),
		`"crisp.io/device=/dev/a:/dev/b:r": 1`:     node("/dev/a", "/dev/b", "r"),
		`"crisp.io/device=/dev/bus/usb:rw": 1`:     node("/dev/bus/usb", "/dev/bus/usb", "rw"),
		"nvidia.com/gpu: 2":                        {{CDI: []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1"}}},
		"nvidia.com/gpu=all: 1":                    {{CDI: []string{"nvidia.com/gpu=all"}}},
		"amd.com/gpu: 0, cpu: 1, hugepages-2Mi: 0": {{}},
	} {
		objects, _, err := manifest.Read("f", []byte(pod+"    resources: {limits: {"+limit+"}}\n"), node1())
		if err != nil {
			t.Errorf("%s: %v", limit, err)
			continue
		}
		limits := objects[0].(*v1.Pod).Spec.Containers[0].Resources.Limits
		if got := manifest.Devices(limits); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", limit, got, want)
		}
	}
	for resources, want := range map[string]string{
		"limits: {crisp.io/device=dev/fuse: 1}":                      `limits[crisp.io/device=dev/fuse]: "dev/fuse": want /dev/NAME[:/dev/NAME][:rwm] and the amount 1`,
		"limits: {crisp.io/device=/dev/../etc: 1}":                   `want /dev/NAME`,
		"limits: {crisp.io/device=/dev/fuse: 2}":                     `want /dev/NAME`,
		`limits: {"crisp.io/device=/dev/fuse:/dev/fuse:x": 1}`:       `want /dev/NAME`,
		"limits: {nvidia.com/gpu=all: 2}":                            "limits[nvidia.com/gpu=all]: 2: want VENDOR/CLASS=DEVICE and the amount 1",
		"limits: {nvidia.com/gpu: 1000}":                             "limits[nvidia.com/gpu]: 1000 are more than 64 devices",
		"limits: {nvidia.com/g pu: 1}":                               `limits[nvidia.com/g pu]: "nvidia.com/g pu": name part must`,
		"limits: {gpu: 1}":                                           "limits[gpu]: this node has no such resource",
		"limits: {x.kubernetes.io/gpu: 1}":                           "limits[x.kubernetes.io/gpu]: this node has no such resource",
		"requests: {nvidia.com/gpu: 1}":                              "requests[nvidia.com/gpu]: 1 must be the limit too",
		"limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 2}": "requests[nvidia.com/gpu]: 2 must be the limit too",
		"limits: {nvidia.com/gpu: 500m}":                             "limits[nvidia.com/gpu]: 500m is not a whole number",
		"limits: {nvidia.com/gpu: -1}":                               "limits[nvidia.com/gpu]: -1 is negative",
	} {
		_, _, err := manifest.Read("f", []byte(pod+"    resources: {"+resources+"}\n"), node1())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", resources, err, want)
		}
	}
	if _, _, err := manifest.Read("f", []byte(pod+"  resources: {limits: {nvidia.com/gpu: 1}}\n"), node1()); err == nil {
		t.Error("a pod as a whole has devices")
	}
}

func node1() manifest.Options { return manifest.Options{NodeName: "node1"} }
