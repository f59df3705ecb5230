package oci

import (
	"fmt"
	"path"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Shims tell a container's counters in one of two messages, which containerd's module cgroups
// publishes: cgroup1/stats/metrics.proto and cgroup2/stats/metrics.proto. Their fields are decoded
// here by their numbers. A kernel in a sandbox fills in only some.

// A field is what is made of a field of a message: a number, or a message in it.
type field struct {
	number *uint64
	fields map[protowire.Number]field
	each   func(data []byte) error // of a repeated one
}

func n(to *uint64) field                          { return field{number: to} }
func sub(fields map[protowire.Number]field) field { return field{fields: fields} }

// decodeStats decodes the counters of a shim's container by their type URL.
func decodeStats(kind string, data []byte) (s Stats, err error) {
	switch path.Base(kind) {
	case "io.containerd.cgroups.v1.Metrics":
		err = decodeFields(data, s.metricsV1())
		s.Memory.Limit, s.Swap.Limit = bounded(s.Memory.Limit), bounded(s.Swap.Limit)
		s.Swap.Usage -= min(s.Swap.Usage, s.Memory.Usage)
		s.Swap.Limit -= min(s.Swap.Limit, s.Memory.Limit)
	case "io.containerd.cgroups.v2.Metrics":
		err = decodeFields(data, s.metricsV2())
		for _, t := range []*uint64{&s.CPU.UsageNs, &s.CPU.UserNs, &s.CPU.SystemNs, &s.CPU.ThrottledNs} {
			*t *= 1000
		}
		s.Memory.Limit, s.Swap.Limit = bounded(s.Memory.Limit), bounded(s.Swap.Limit)
	default:
		return s, fault.Internal.Errorf("shim's counters are a %q", kind)
	}
	s.Pids.Limit = bounded(s.Pids.Limit)
	s.Swap.Limited = s.Swap.Limit > 0
	s.Swap.Available = s.Swap.Limit - min(s.Swap.Limit, s.Swap.Usage)
	s.Memory.WorkingSet = s.Memory.Usage - min(s.Memory.Usage, s.Memory.InactiveFile)
	s.Memory.Available = s.Memory.Limit - min(s.Memory.Limit, s.Memory.WorkingSet)
	return s, err
}

func (s *Stats) metricsV1() map[protowire.Number]field {
	c, m := &s.CPU, &s.Memory
	return map[protowire.Number]field{
		1: {each: func(data []byte) error { return s.hugePage(data, 4) }},
		2: sub(map[protowire.Number]field{1: n(&s.Pids.Current), 2: n(&s.Pids.Limit)}),
		3: sub(map[protowire.Number]field{
			1: sub(map[protowire.Number]field{1: n(&c.UsageNs), 2: n(&c.SystemNs), 3: n(&c.UserNs)}),
			2: sub(map[protowire.Number]field{1: n(&c.Periods), 2: n(&c.ThrottledPeriods), 3: n(&c.ThrottledNs)}),
		}),
		4: sub(map[protowire.Number]field{
			18: n(&m.Cache), 19: n(&m.RSS), 21: n(&m.MappedFile), 26: n(&m.PageFaults), 27: n(&m.MajorPageFaults),
			30: n(&m.InactiveFile), 31: n(&m.ActiveFile),
			33: sub(map[protowire.Number]field{1: n(&m.Limit), 2: n(&m.Usage), 3: n(&m.Peak), 4: n(&m.FailCount)}),
			34: sub(map[protowire.Number]field{1: n(&s.Swap.Limit), 2: n(&s.Swap.Usage)}), // with memory
			35: sub(map[protowire.Number]field{2: n(&m.Kernel)}),
		}),
	}
}

func (s *Stats) metricsV2() map[protowire.Number]field {
	c, m := &s.CPU, &s.Memory
	return map[protowire.Number]field{
		1: sub(map[protowire.Number]field{1: n(&s.Pids.Current), 2: n(&s.Pids.Limit)}),
		2: sub(map[protowire.Number]field{
			1: n(&c.UsageNs), 2: n(&c.UserNs), 3: n(&c.SystemNs), 4: n(&c.Periods), 5: n(&c.ThrottledPeriods), 6: n(&c.ThrottledNs),
		}),
		4: sub(map[protowire.Number]field{
			1: n(&m.RSS), 2: n(&m.Cache), 7: n(&m.MappedFile), 13: n(&m.InactiveFile), 14: n(&m.ActiveFile),
			18: n(&m.PageFaults), 19: n(&m.MajorPageFaults),
			32: n(&m.Usage), 33: n(&m.Limit), 34: n(&s.Swap.Usage), 35: n(&s.Swap.Limit), 36: n(&m.Peak),
		}),
		6: sub(map[protowire.Number]field{1: {each: s.device}}),
		7: {each: func(data []byte) error { return s.hugePage(data, 3) }},
	}
}

// mostStats bounds the devices and sizes of huge pages that a shim may tell.
const mostStats = 256

// device decodes an IOEntry of cgroup v2.
func (s *Stats) device(data []byte) error {
	var d DeviceIO
	var major, minor uint64
	err := decodeFields(data, map[protowire.Number]field{
		1: n(&major), 2: n(&minor), 3: n(&d.ReadBytes), 4: n(&d.WriteBytes), 5: n(&d.Reads), 6: n(&d.Writes),
	})
	d.Device = fmt.Sprintf("%d:%d", major, minor)
	if err == nil && len(s.IO.Devices) < mostStats {
		s.IO.Devices = append(s.IO.Devices, d)
	}
	return err
}

// hugePage decodes a HugetlbStat, whose size is in the field size. It becomes a label: of UTF-8 only.
func (s *Stats) hugePage(data []byte, size protowire.Number) error {
	var h HugePageStats
	err := decodeFields(data, map[protowire.Number]field{
		1: n(&h.Usage), 2: n(&h.Max),
		size: {each: func(text []byte) error { h.Size = string(text[:min(len(text), 32)]); return nil }},
	})
	h.Size = strings.ToValidUTF8(h.Size, "")
	if err == nil && len(s.HugePages) < mostStats {
		s.HugePages = append(s.HugePages, h)
	}
	return err
}

// decodeFields decodes a message. Unknown fields are skipped, and so are those of other types.
func decodeFields(data []byte, fields map[protowire.Number]field) error {
	for len(data) > 0 {
		number, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			return fault.Internal.Errorf("malformed message: %w", protowire.ParseError(size))
		}
		data = data[size:]
		if size = protowire.ConsumeFieldValue(number, kind, data); size < 0 {
			return fault.Internal.Errorf("malformed message: %w", protowire.ParseError(size))
		}
		value, f := data[:size], fields[number]
		data = data[size:]
		if kind == protowire.VarintType && f.number != nil {
			*f.number, _ = protowire.ConsumeVarint(value)
		}
		if kind != protowire.BytesType {
			continue
		}
		inner, _ := protowire.ConsumeBytes(value)
		var err error
		switch {
		case f.each != nil:
			err = f.each(inner)
		case f.fields != nil:
			err = decodeFields(inner, f.fields)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
