package housekeeping

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// An Amount is a number of bytes, inodes or processes, or a part of the capacity.
type Amount struct {
	Amount  int64   // used if Percent is 0
	Percent float64 // of the capacity
}

func (a Amount) of(capacity int64) int64 {
	if a.Percent > 0 {
		return int64(a.Percent * float64(capacity) / 100)
	}
	return a.Amount
}

// String returns the amount in the form of the flags: "100Mi" or "10%".
func (a Amount) String() string {
	if a.Percent > 0 {
		return strconv.FormatFloat(a.Percent, 'g', -1, 64) + "%"
	}
	return resource.NewQuantity(a.Amount, resource.BinarySI).String()
}

// A Threshold is met when less than Amount is available.
type Threshold struct {
	Signal Signal
	Amount
	Grace time.Duration // how long it may be met; 0 for a hard threshold, at which pods get a second to end
}

// DefaultEvictHard are the kubelet's default hard thresholds.
const DefaultEvictHard = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"

// ParseThresholds parses thresholds in the form of the kubelet's flags: hard and soft are
// "memory.available<100Mi,…"; grace is "memory.available=1m30s,…", with a grace period for
// each soft threshold. Errors quote the faulty part.
func ParseThresholds(hard, soft, grace string) ([]Threshold, error) {
	list, err := parse(hard)
	if err != nil {
		return nil, err
	}
	later, err := parse(soft)
	if err != nil {
		return nil, err
	}
	graces := map[Signal]time.Duration{}
	for text := range strings.SplitSeq(grace, ",") {
		if text == "" {
			continue
		}
		name, value, _ := strings.Cut(text, "=")
		if graces[Signal(name)], err = time.ParseDuration(value); err != nil {
			return nil, fmt.Errorf("%q: want SIGNAL=DURATION", text)
		}
	}
	for _, t := range later {
		if t.Grace = graces[t.Signal]; t.Grace <= 0 {
			return nil, fmt.Errorf("soft threshold %s has no grace period", t.Signal)
		}
		list = append(list, t)
	}
	return list, nil
}

// Reserved returns the memory and disk that the hard thresholds withhold from pods.
func Reserved(thresholds []Threshold, capacity v1.ResourceList) v1.ResourceList {
	list := v1.ResourceList{}
	for _, t := range thresholds {
		name := map[Signal]v1.ResourceName{Memory: v1.ResourceMemory, NodeFS: v1.ResourceEphemeralStorage}[t.Signal]
		if name == "" || t.Grace > 0 {
			continue
		}
		has := capacity[name]
		list[name] = *resource.NewQuantity(t.of(has.Value()), resource.BinarySI)
	}
	return list
}

func parse(text string) ([]Threshold, error) {
	amounts, names, err := split(text, "<")
	var list []Threshold
	for _, name := range names {
		list = append(list, Threshold{Signal: name, Amount: amounts[name]})
	}
	return list, err
}

// ParseReclaim parses Rules.EvictReclaim: "nodefs.available=500Mi,imagefs.available=5%".
func ParseReclaim(text string) (map[Signal]Amount, error) {
	amounts, _, err := split(text, "=")
	return amounts, err
}

// split parses "SIGNAL<sign>AMOUNT,…". It also returns the signals in their order in text.
func split(text, sign string) (map[Signal]Amount, []Signal, error) {
	amounts := map[Signal]Amount{}
	var names []Signal
	for text := range strings.SplitSeq(text, ",") {
		if text == "" {
			continue
		}
		name, value, ok := strings.Cut(text, sign)
		signal := Signal(name)
		if !ok || !slices.Contains(signalOrder, signal) {
			return nil, nil, fmt.Errorf("%q: want SIGNAL%sAMOUNT, SIGNAL one of %v", text, sign, signalOrder)
		}
		if _, twice := amounts[signal]; twice {
			return nil, nil, fmt.Errorf("%q: %s is given twice", text, signal)
		}
		var a Amount
		if percent, ok := strings.CutSuffix(value, "%"); ok {
			p, err := strconv.ParseFloat(percent, 64)
			if err != nil || p < 0 || p > 100 {
				return nil, nil, fmt.Errorf("%q: want a percentage from 0 to 100", text)
			}
			a.Percent = p
		} else {
			q, err := resource.ParseQuantity(value)
			if err != nil || q.Sign() < 0 {
				return nil, nil, fmt.Errorf("%q: want a quantity such as 100Mi, or a percentage", text)
			}
			a.Amount = q.Value()
		}
		amounts[signal] = a
		names = append(names, signal)
	}
	return amounts, names, nil
}

// AmountTexts returns amounts by signal in the form of a KubeletConfiguration.
func AmountTexts(amounts map[Signal]Amount) map[string]string {
	texts := map[string]string{}
	for signal, a := range amounts {
		texts[string(signal)] = a.String()
	}
	return texts
}
