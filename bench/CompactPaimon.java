package bench;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

import org.apache.paimon.append.AppendCompactCoordinator;
import org.apache.paimon.append.AppendCompactTask;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.data.Timestamp;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.operation.BaseAppendFileStoreWrite;
import org.apache.paimon.options.Options;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessage;
import org.apache.paimon.table.sink.StreamTableCommit;
import org.apache.paimon.table.sink.StreamTableWrite;
import org.apache.paimon.table.source.EndOfScanException;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.types.DataTypes;
import org.apache.paimon.utils.CloseableIterator;

/** Telemetry in many small files of an append table, Paimon's own compaction of it, and its rows by Paimon's own reader. */
public class CompactPaimon {
  private static final int FIRST_DAY = 19793;
  private static final String[] TROUBLE = {"warn", "fail", "offline"};

  public FileStoreTable create(String warehouse, String name) throws Exception {
    Catalog catalog = catalog(warehouse);
    catalog.createDatabase("db", true);
    catalog.dropTable(Identifier.create("db", name), true);
    Schema.Builder schema = Schema.newBuilder();
    schema.column("device_id", DataTypes.STRING());
    schema.column("day", DataTypes.DATE());
    schema.column("event_time", DataTypes.TIMESTAMP(6));
    schema.column("received_at", DataTypes.TIMESTAMP(6));
    schema.column("sequence", DataTypes.BIGINT());
    schema.column("error_code", DataTypes.INT());
    schema.column("temperature", DataTypes.DOUBLE());
    schema.column("humidity", DataTypes.DOUBLE());
    schema.column("voltage", DataTypes.DOUBLE());
    schema.column("status", DataTypes.STRING());
    schema.column("session", DataTypes.STRING());
    schema.partitionKeys(Arrays.asList(new String[] {"day"}));
    schema.option("bucket", "-1");
    catalog.createTable(Identifier.create("db", name), schema.build(), false);
    return load(warehouse, name);
  }

  public FileStoreTable load(String warehouse, String name) throws Exception {
    return (FileStoreTable) catalog(warehouse).getTable(Identifier.create("db", name));
  }

  private static Catalog catalog(String warehouse) {
    Options options = new Options();
    options.set("warehouse", warehouse);
    options.set("cache-enabled", "false");
    return CatalogFactory.createCatalog(CatalogContext.create(options));
  }

  /** So many files, each a slice of a day's time, all in one commit. */
  public void build(final FileStoreTable table, final int files, final int rows, final int days, int threads)
      throws Exception {
    List work = new ArrayList();
    for (int number = 0; number < files; number++) {
      final int file = number;
      work.add(
          new Callable() {
            public Object call() throws Exception {
              return write(table, file, files, rows, days);
            }
          });
    }
    commit(table, flat(all(work, threads)));
  }

  private static List write(FileStoreTable table, int file, int files, int rows, int days) throws Exception {
    StreamTableWrite write = table.newWrite("bench-" + file);
    write = (StreamTableWrite) write.withIOManager(IOManager.create(System.getProperty("java.io.tmpdir")));
    long slice = 86400000000L * days / files;
    for (int place = 0; place < rows; place++) {
      long id = (long) file * rows + place;
      long since = file / days * slice + place * (slice / rows) + below(id, 1, 2000000);
      long event = (FIRST_DAY + file % days) * 86400000000L + since;
      boolean failing = below(id, 3, 100) >= 96;
      Object[] values = {
        text(String.format("device-%06d", new Object[] {Long.valueOf(below(id, 5, 2000))})),
        Integer.valueOf(FIRST_DAY + file % days),
        Timestamp.fromMicros(event),
        Timestamp.fromMicros(event + 20000 + below(id, 2, 400000)),
        Long.valueOf(id),
        failing ? Integer.valueOf((int) (1000 + below(id, 6, 40))) : null,
        Double.valueOf(21.5 + 6 * Math.sin(since / 13750987083.1) + 3 * (below(id, 4, 1000000) / 1e6 - 0.5)),
        below(id, 7, 100) > 0 ? Double.valueOf(40 + below(id, 8, 300) / 10.0) : null,
        Double.valueOf(3.3 + 0.05 * (below(id, 9, 1L << 50) / (double) (1L << 50) - 0.5)),
        text(failing ? TROUBLE[(int) below(id, 10, 3)] : "ok"),
        text(String.format("%012x", new Object[] {Long.valueOf(below(id / 1000 * 500 + below(id, 12, 500), 11, 1L << 48))}))
      };
      write.write(GenericRow.of(values));
    }
    List messages = write.prepareCommit(true, 1);
    write.close();
    return messages;
  }

  private static BinaryString text(String value) {
    return BinaryString.fromString(value);
  }

  private static long below(long id, int salt, long limit) {
    return Math.floorMod(mix(id * 31 + salt), limit);
  }

  private static long mix(long value) {
    long mixed = (value ^ (value >>> 30)) * 0xbf58476d1ce4e5b9L;
    mixed = (mixed ^ (mixed >>> 27)) * 0x94d049bb133111ebL;
    return mixed ^ (mixed >>> 31);
  }

  /** Paimon's own coordinator and tasks, as many at once as there are cores, and one commit. */
  public int ownCompact(FileStoreTable table, long target, int threads) throws Exception {
    Map options = new HashMap();
    options.put("target-file-size", target + " b");
    options.put("source.split.open-file-cost", "1 b");
    options.put("write-only", "true");
    final FileStoreTable sized = (FileStoreTable) table.copy(options);
    AppendCompactCoordinator coordinator = new AppendCompactCoordinator(sized, false);
    List work = new ArrayList();
    try {
      while (true) {
        for (Iterator each = coordinator.run().iterator(); each.hasNext(); ) {
          final AppendCompactTask task = (AppendCompactTask) each.next();
          work.add(
              new Callable() {
                public Object call() throws Exception {
                  BaseAppendFileStoreWrite write =
                      (BaseAppendFileStoreWrite) sized.store().newWrite("bench");
                  List made = Collections.singletonList(task.doCompact(sized, write));
                  write.close();
                  return made;
                }
              });
        }
      }
    } catch (EndOfScanException end) {
      // Every file has been looked at.
    }
    List messages = flat(all(work, threads));
    commit(sized, messages);
    return messages.size();
  }

  private static void commit(FileStoreTable table, List messages) throws Exception {
    Map writeOnly = Collections.singletonMap("write-only", "true");
    StreamTableCommit commit = ((FileStoreTable) table.copy(writeOnly)).newCommit("bench");
    commit.commit(System.currentTimeMillis(), messages);
    commit.close();
  }

  private static List all(List work, int threads) throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(threads);
    List found = new ArrayList();
    try {
      for (Iterator each = pool.invokeAll(work).iterator(); each.hasNext(); ) {
        found.add(((Future) each.next()).get());
      }
    } finally {
      pool.shutdown();
    }
    return found;
  }

  private static List flat(List lists) {
    List found = new ArrayList();
    for (Iterator each = lists.iterator(); each.hasNext(); ) {
      found.addAll((List) each.next());
    }
    return found;
  }

  /** Live data files and their bytes. */
  public String totals(FileStoreTable table) {
    long bytes = 0;
    List files = table.store().newScan().plan().files();
    for (Iterator each = files.iterator(); each.hasNext(); ) {
      bytes += ((org.apache.paimon.manifest.ManifestEntry) each.next()).file().fileSize();
    }
    return files.size() + " " + bytes;
  }

  /** Count, sum and exclusive-or of a hash over every column of every row, by Paimon's own reader. */
  public String fingerprint(final FileStoreTable table, int threads) throws Exception {
    final ReadBuilder read = table.newReadBuilder();
    List work = new ArrayList();
    for (Iterator each = read.newScan().plan().splits().iterator(); each.hasNext(); ) {
      final Split split = (Split) each.next();
      work.add(
          new Callable() {
            public Object call() throws Exception {
              return summed(read.newRead().createReader(split));
            }
          });
    }
    long count = 0;
    long sum = 0;
    long xor = 0;
    for (Iterator each = all(work, threads).iterator(); each.hasNext(); ) {
      long[] part = (long[]) each.next();
      count += part[0];
      sum += part[1];
      xor ^= part[2];
    }
    return count + " " + sum + " " + xor;
  }

  private static long[] summed(RecordReader reader) throws Exception {
    long[] found = new long[3];
    CloseableIterator rows = reader.toCloseableIterator();
    while (rows.hasNext()) {
      long hash = hash((InternalRow) rows.next());
      found[0]++;
      found[1] += hash;
      found[2] ^= hash;
    }
    rows.close();
    return found;
  }

  private static long hash(InternalRow row) {
    long found = 17;
    for (int at = 0; at < 11; at++) {
      long value = 0;
      if (row.isNullAt(at)) {
        value = 42;
      } else if (at == 0 || at == 9 || at == 10) {
        value = row.getString(at).hashCode();
      } else if (at == 1 || at == 5) {
        value = row.getInt(at);
      } else if (at == 2 || at == 3) {
        value = row.getTimestamp(at, 6).toMicros();
      } else if (at == 4) {
        value = row.getLong(at);
      } else {
        value = Double.doubleToLongBits(row.getDouble(at));
      }
      found = mix(found * 31 + value);
    }
    return found;
  }
}
