package why

import (
	"regexp"
	"strings"
)

// cures has what helps against causes that have one, by the words that say them. The first that
// matches counts.
var cures = []struct {
	cause *regexp.Regexp
	cure  string
}{
	{regexp.MustCompile(`ran out of memory`), "raise its memory limit"},
	{regexp.MustCompile(`could not be started.*(no such file|not found)`), "correct its command: the image has no such program"},
	{regexp.MustCompile(`could not be started.*permission denied`), "make the program executable for the container's user"},
	{regexp.MustCompile(`ErrImageNeverPull`), "load the image, or change imagePullPolicy"},
	{regexp.MustCompile(`InvalidImageName`), "correct the image's name"},
	{regexp.MustCompile(`(ErrImagePull|ImagePullBackOff).*(unauthorized|denied|authentication)`), "crisp login, or imagePullSecrets"},
	{regexp.MustCompile(`(ErrImagePull|ImagePullBackOff).*(manifest unknown|name unknown|not found)`), "correct the image's name or tag"},
	{regexp.MustCompile(`(ErrImagePull|ImagePullBackOff|RegistryUnavailable).*(refused|no such host|timeout|no route|unreachable)`), "check the registry's name, and the network"},
	{regexp.MustCompile(`key .* in (config map|configmap|ConfigMap|secret|Secret)|find key`), "add the key, or make the reference optional"},
	{regexp.MustCompile(`(?i)(config ?map|secret) .*(not found|no )|no (config ?map|secret)`), "create it, or make the reference optional"},
	{regexp.MustCompile(`(?i)runAsNonRoot|non-root`), "set runAsUser, or take another image"},
	{regexp.MustCompile(`(?i)claim`), "create the claim"},
	{regexp.MustCompile(`is not of the type`), "correct the path, or the volume's type"},
	{regexp.MustCompile(`FailedMount`), "create the path, or set the volume's type: DirectoryOrCreate"},
	{regexp.MustCompile(`OutOf(cpu|memory|pods|ephemeral)`), "lower its requests, or end other pods"},
	{regexp.MustCompile(`DeadlineExceeded`), "raise activeDeadlineSeconds"},
	{regexp.MustCompile(`(?i)runtime ?class|no handler`), "create the RuntimeClass, or configure its handler in crispd"},
	{regexp.MustCompile(`(readiness|startup) probe`), "crisp logs, and ask as the probe does"},
	{regexp.MustCompile(`init container .* has not ended`), "crisp logs with -c and its name"},
	{regexp.MustCompile(`ended with code`), "crisp logs, with --previous for the run before"},
}

// withCure adds what helps to a sentence.
func withCure(text string) string {
	for _, c := range cures {
		if c.cause.MatchString(text) {
			return strings.TrimSuffix(text, ".") + "; try: " + c.cure
		}
	}
	return text
}
