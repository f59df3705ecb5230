package seccomp

import (
	"os"

	"github.com/seccomp/libseccomp-golang/upstream"
)

// A ScmpFilter is libseccomp's filter, until its program is exported.
type ScmpFilter struct {
	filter  *seccomp.ScmpFilter // nil in a zero ScmpFilter, which runc uses to probe flags
	compile *compilation        // nil outside of Compile
}

// NewFilter makes a filter.
func NewFilter(defaultAction ScmpAction) (*ScmpFilter, error) {
	filter, err := seccomp.NewFilter(defaultAction)
	if err != nil {
		return nil, err
	}
	f := &ScmpFilter{filter: filter, compile: compiling}
	if f.compile != nil {
		f.compile.filters = append(f.compile.filters, filter)
	}
	return f, nil
}

func (f *ScmpFilter) real() *seccomp.ScmpFilter {
	if f.filter == nil {
		return &seccomp.ScmpFilter{}
	}
	return f.filter
}

// AddArch adds an architecture.
func (f *ScmpFilter) AddArch(arch ScmpArch) error { return f.real().AddArch(arch) }

// AddRule adds a rule without conditions; a given program already has it.
func (f *ScmpFilter) AddRule(call ScmpSyscall, action ScmpAction) error {
	if given != nil {
		return nil
	}
	return f.real().AddRule(call, action)
}

// AddRuleConditional is AddRule with conditions.
func (f *ScmpFilter) AddRuleConditional(call ScmpSyscall, action ScmpAction, conds []ScmpCondition) error {
	if given != nil {
		return nil
	}
	return f.real().AddRuleConditional(call, action, conds)
}

// ExportBPF writes the program. In Compile it keeps it and returns an error instead, at which
// its caller gives up.
func (f *ScmpFilter) ExportBPF(file *os.File) error {
	switch {
	case f.compile != nil:
		return f.compile.export(f.real())
	case given != nil:
		_, err := file.Write(given)
		return err
	}
	return f.real().ExportBPF(file)
}

// GetLogBit, GetNoNewPrivsBit, GetSSB and GetWaitKill return how to load the program.

func (f *ScmpFilter) GetLogBit() (bool, error)        { return f.real().GetLogBit() }
func (f *ScmpFilter) GetNoNewPrivsBit() (bool, error) { return f.real().GetNoNewPrivsBit() }
func (f *ScmpFilter) GetSSB() (bool, error)           { return f.real().GetSSB() }
func (f *ScmpFilter) GetWaitKill() (bool, error)      { return f.real().GetWaitKill() }

// SetLogBit, SetNoNewPrivsBit, SetSSB and SetWaitKill set it.

func (f *ScmpFilter) SetLogBit(on bool) error        { return f.real().SetLogBit(on) }
func (f *ScmpFilter) SetNoNewPrivsBit(on bool) error { return f.real().SetNoNewPrivsBit(on) }
func (f *ScmpFilter) SetSSB(on bool) error           { return f.real().SetSSB(on) }
func (f *ScmpFilter) SetWaitKill(on bool) error      { return f.real().SetWaitKill(on) }

// SetOptimize sets how libseccomp arranges the program.
func (f *ScmpFilter) SetOptimize(level int) error { return f.real().SetOptimize(level) }
