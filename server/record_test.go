package server

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/server/selinux"
)

// A record is decoded as it was, unknown fields of newer kubelets included. Here every
// field is set: otherwise encode or decode could miss one unnoticed.
func TestRecords(t *testing.T) {
	config := pod("web")
	config.ProtoReflect().SetUnknown([]byte{0xf8, 0x7f, 0x01}) // field 2047, varint 1
	sb := &sandboxRecord{config: config, handler: "crisp", labels: selinux.Labels{Process: "u:r:t:s0:c1,c2", Mount: "u:r:f:s0:c1,c2"}, ips: []string{"10.0.0.1", "fd00::1"}, detached: true,
		resources: &cri.UpdatePodSandboxResourcesRequest{Overhead: &cri.LinuxContainerResources{CpuShares: 2}}}
	allSet(t, sb)
	extra, err := sb.encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeSandbox(extra)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sb, got, cmp.AllowUnexported(sandboxRecord{}), protocmp.Transform()); diff != "" {
		t.Errorf("sandbox (-want +got):\n%s", diff)
	}
	c := &containerRecord{
		config: forever("a"), imageID: testID, imageRef: testDigest, signal: cri.Signal_SIGNAL_SIGHUP, volumes: []string{"x-0"},
		imageUser: &cri.ContainerUser{Linux: &cri.LinuxContainerUser{Uid: 7}}, resources: &cri.LinuxContainerResources{CpuShares: 2},
		original: &cri.ImageSpec{Image: "original"}, mountImages: map[int]string{0: testID},
	}
	c.config.Mounts = []*cri.Mount{{ContainerPath: "/i", Image: &cri.ImageSpec{Image: testImage}}}
	c.config.Envs = []*cri.KeyValue{{Key: "K", Value: []byte{0xff, 0xfe}}} // no UTF-8
	allSet(t, c)
	if extra, err = c.encode(); err != nil {
		t.Fatal(err)
	}
	gotC, err := decodeContainer(extra)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c, gotC, cmp.AllowUnexported(containerRecord{}), protocmp.Transform()); diff != "" {
		t.Errorf("container (-want +got):\n%s", diff)
	}
	if _, err := decodeContainer([]byte(`{"Version":2}`)); err == nil {
		t.Error("a record of another version was read")
	}
}

func allSet(t *testing.T, record any) {
	t.Helper()
	v := reflect.ValueOf(record).Elem()
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s.%s is not set", v.Type().Name(), v.Type().Field(i).Name)
		}
	}
}
