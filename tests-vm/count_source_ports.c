// SPDX-License-Identifier: GPL-2.0
/*
 * Counts the RoCE v2 packets of reliable connections that leave an interface, by
 * their UDP source port, until SIGTERM. Prints lines of "<port> <packets>".
 *
 *	count_source_ports <interface>
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ETH_IP		0x0800
#define UDP		17
#define ROCE_V2		4791
#define UDP_HEADER	8

static volatile sig_atomic_t stopped;
static unsigned long packets[65536];

static void stop(int sig)
{
	(void)sig;
	stopped = 1;
}

static void count(const uint8_t *ip, ssize_t len)
{
	ssize_t header;
	uint16_t ports[2];

	if (len < 20)
		return;
	header = (ip[0] & 0xf) * 4;
	if (ip[9] != UDP || len <= header + UDP_HEADER)
		return;
	memcpy(ports, ip + header, sizeof(ports));
	/* First byte of the base transport header: RC has operations 0 to 31. */
	if (ntohs(ports[1]) == ROCE_V2 && ip[header + UDP_HEADER] < 32)
		packets[ntohs(ports[0])]++;
}

int main(int argc, char **argv)
{
	struct sigaction on_term = { .sa_handler = stop };
	struct sockaddr_ll from, on = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(0x0003), /* ETH_P_ALL: outgoing packets, too */
	};
	uint8_t packet[65536];
	unsigned int port;
	int s;

	s = socket(AF_PACKET, SOCK_DGRAM, 0);
	on.sll_ifindex = argc == 2 ? (int)if_nametoindex(argv[1]) : 0;
	if (s < 0 || !on.sll_ifindex || bind(s, (void *)&on, sizeof(on))) {
		perror("count_source_ports");
		return 1;
	}
	sigaction(SIGTERM, &on_term, NULL);
	while (!stopped) {
		socklen_t size = sizeof(from);
		ssize_t len = recvfrom(s, packet, sizeof(packet), 0, (void *)&from, &size);

		if (len > 0 && from.sll_pkttype == PACKET_OUTGOING && ntohs(from.sll_protocol) == ETH_IP)
			count(packet, len);
	}
	for (port = 0; port < 65536; port++)
		if (packets[port])
			printf("%u %lu\n", port, packets[port]);
	return 0;
}
