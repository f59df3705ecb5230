package volume

import (
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The medium HugePages uses the page size that the pod requests, even if an init container or the
// pod as a whole requests it. The mount itself fails here, because the directory does not exist.
func TestHugePageSize(t *testing.T) {
	limits := func(names ...v1.ResourceName) v1.ResourceRequirements {
		list := v1.ResourceList{}
		for _, name := range names {
			list[name] = resource.MustParse("4Mi")
		}
		return v1.ResourceRequirements{Limits: list}
	}
	with := func(r v1.ResourceRequirements) []v1.Container { return []v1.Container{{Resources: r}} }
	whole := limits("hugepages-2Mi")
	for _, test := range []struct {
		name string
		spec v1.PodSpec
		want string
	}{
		{"container", v1.PodSpec{Containers: with(limits("hugepages-2Mi", "memory"))}, "pages of 2Mi"},
		{"init container", v1.PodSpec{InitContainers: with(limits("hugepages-2Mi")), Containers: with(limits("memory"))}, "pages of 2Mi"},
		{"pod", v1.PodSpec{Containers: with(limits()), Resources: &whole}, "pages of 2Mi"},
		{"none", v1.PodSpec{Containers: with(limits("memory"))}, "not for 0"},
		{"two", v1.PodSpec{InitContainers: with(limits("hugepages-1Gi")), Containers: with(limits("hugepages-2Mi"))}, "not for 2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := mountHugePages(filepath.Join(t.TempDir(), "none"), "", &v1.Pod{Spec: test.spec})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
}
