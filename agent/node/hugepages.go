package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// hugePages returns the bytes in each pool of huge pages, including empty ones:
// "hugepages-2Mi". dir is /sys/kernel/mm/hugepages, which a kernel without huge pages does
// not have (Documentation/admin-guide/mm/hugetlbpage.rst).
func hugePages(dir string) v1.ResourceList {
	pools := v1.ResourceList{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return pools
	}
	for _, e := range entries {
		var kib int64
		if n, err := fmt.Sscanf(e.Name(), "hugepages-%dkB", &kib); n != 1 || err != nil {
			continue
		}
		pages, err := strconv.ParseInt(line(filepath.Join(dir, e.Name(), "nr_hugepages")), 10, 64)
		if err != nil {
			continue
		}
		size := resource.NewQuantity(kib<<10, resource.BinarySI)
		pools[v1.ResourceName(v1.ResourceHugePagesPrefix+size.String())] = *resource.NewQuantity(pages*size.Value(), resource.BinarySI)
	}
	return pools
}
