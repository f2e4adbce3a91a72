package lakewarden.tests;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import org.apache.paimon.append.AppendCompactCoordinator;
import org.apache.paimon.append.AppendCompactTask;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.consumer.Consumer;
import org.apache.paimon.consumer.ConsumerManager;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.fs.Path;
import org.apache.paimon.manifest.ManifestCommittable;
import org.apache.paimon.operation.BaseAppendFileStoreWrite;
import org.apache.paimon.operation.LocalOrphanFilesClean;
import org.apache.paimon.options.ExpireConfig;
import org.apache.paimon.options.Options;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.schema.SchemaChange;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.FileStoreTableFactory;
import org.apache.paimon.table.sink.CommitMessage;
import org.apache.paimon.table.sink.StreamTableCommit;
import org.apache.paimon.table.sink.StreamTableWrite;
import org.apache.paimon.table.sink.TableCommitImpl;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.source.StreamTableScan;
import org.apache.paimon.table.source.TableScan;
import org.apache.paimon.types.DataTypes;
import org.apache.paimon.types.RowKind;
import org.apache.paimon.utils.CloseableIterator;

/** Makes Paimon tables and does to them what their writers do. Three columns: id bigint, v string, dt string. */
public class PaimonMaker {
  private static final ObjectMapper JSON = new ObjectMapper();
  private long commits = 0;

  public Catalog open(Map properties) {
    Options options = new Options(properties);
    options.set("cache-enabled", "false");
    return CatalogFactory.createCatalog(CatalogContext.create(options));
  }

  /** As a writer opens it that sets nothing else: snapshots and tables are remembered. */
  public Catalog openWith(Map told) {
    Options options = new Options();
    for (Iterator each = told.entrySet().iterator(); each.hasNext(); ) {
      Map.Entry entry = (Map.Entry) each.next();
      options.set((String) entry.getKey(), (String) entry.getValue());
    }
    return CatalogFactory.createCatalog(CatalogContext.create(options));
  }

  public void create(Catalog catalog, String name, boolean keyed, Map options) throws Exception {
    catalog.createDatabase("db", true);
    Schema.Builder schema = Schema.newBuilder();
    schema.column("id", DataTypes.BIGINT());
    schema.column("v", DataTypes.STRING());
    schema.column("dt", DataTypes.STRING());
    schema.partitionKeys(Arrays.asList(new String[] {"dt"}));
    if (keyed) {
      schema.primaryKey(Arrays.asList(new String[] {"id", "dt"}));
    }
    schema.options(options);
    catalog.createTable(Identifier.create("db", name), schema.build(), false);
  }

  public FileStoreTable load(Catalog catalog, String name) throws Exception {
    return (FileStoreTable) catalog.getTable(Identifier.create("db", name));
  }

  /** A table by its folder alone, such as a copy of one. */
  public FileStoreTable at(FileStoreTable like, String folder) {
    return FileStoreTableFactory.create(like.fileIO(), new Path(folder));
  }

  /** One commit; deletes rows instead where asked. Never expires anything by itself. */
  public void write(FileStoreTable table, long from, long count, String dt, boolean delete) throws Exception {
    StreamTableWrite write = table.newWrite("writer");
    write = (StreamTableWrite) write.withIOManager(IOManager.create(System.getProperty("java.io.tmpdir")));
    for (long id = from; id < from + count; id++) {
      Object[] values = {Long.valueOf(id), BinaryString.fromString("v" + id), BinaryString.fromString(dt)};
      GenericRow row = GenericRow.of(values);
      if (delete) {
        row.setRowKind(RowKind.DELETE);
      }
      if (table.bucketMode() == org.apache.paimon.table.BucketMode.HASH_DYNAMIC) {
        write.write(row, (int) (id % 2));
      } else {
        write.write(row);
      }
    }
    commit(table, write.prepareCommit(true, next()));
    write.close();
  }

  private void commit(FileStoreTable table, List messages) throws Exception {
    commitAs((FileStoreTable) table.copy(Collections.singletonMap("write-only", "true")), messages);
  }

  private void commitAs(FileStoreTable table, List messages) throws Exception {
    long number = next();
    StreamTableCommit commit = table.newCommit("writer-" + number);
    try {
      // As a batch job does: a user for each commit, who never comes back.
      commit.commit(Long.MAX_VALUE, messages);
    } catch (RuntimeException lost) {
      commit.abort(withoutMoves(messages));
      throw lost;
    } finally {
      commit.close();
    }
  }

  /** Paimon's abort removes every file a merge brought, also one that only moved to another level, which the table still names. */
  private static List withoutMoves(List messages) {
    List found = new ArrayList();
    for (Iterator each = messages.iterator(); each.hasNext(); ) {
      org.apache.paimon.table.sink.CommitMessageImpl message =
          (org.apache.paimon.table.sink.CommitMessageImpl) each.next();
      List before = new ArrayList();
      for (Iterator files = message.compactIncrement().compactBefore().iterator(); files.hasNext(); ) {
        before.add(((org.apache.paimon.io.DataFileMeta) files.next()).fileName());
      }
      boolean moved = false;
      for (Iterator files = message.compactIncrement().compactAfter().iterator(); files.hasNext(); ) {
        moved = moved || before.contains(((org.apache.paimon.io.DataFileMeta) files.next()).fileName());
      }
      if (!moved) {
        found.add(message);
      }
    }
    return found;
  }

  private synchronized long next() {
    return ++commits;
  }

  /** One commit of rows with another value, as most writers are set up: it expires snapshots by the table's options. */
  public void update(FileStoreTable table, long from, long count, String dt) throws Exception {
    StreamTableWrite write = table.newWrite("writer");
    write = (StreamTableWrite) write.withIOManager(IOManager.create(System.getProperty("java.io.tmpdir")));
    for (long id = from; id < from + count; id++) {
      Object[] values = {Long.valueOf(id), BinaryString.fromString("u" + id), BinaryString.fromString(dt)};
      write.write(GenericRow.of(values));
    }
    commitAs(table, write.prepareCommit(true, next()));
    write.close();
  }

  /** Paimon's own compaction, whole. */
  public void compact(FileStoreTable table) throws Exception {
    if (table.bucketMode() == org.apache.paimon.table.BucketMode.BUCKET_UNAWARE) {
      compactAppended(table);
      return;
    }
    StreamTableWrite write = table.newWrite("writer");
    write = (StreamTableWrite) write.withIOManager(IOManager.create(System.getProperty("java.io.tmpdir")));
    Iterator entries = table.store().newScan().plan().files().iterator();
    List done = new ArrayList();
    while (entries.hasNext()) {
      org.apache.paimon.manifest.ManifestEntry entry = (org.apache.paimon.manifest.ManifestEntry) entries.next();
      String key = entry.partition().hashCode() + " " + entry.bucket();
      if (!done.contains(key)) {
        done.add(key);
        write.compact(entry.partition(), entry.bucket(), true);
      }
    }
    commit(table, write.prepareCommit(true, next()));
    write.close();
  }

  private void compactAppended(FileStoreTable table) throws Exception {
    List tasks;
    try {
      tasks = new AppendCompactCoordinator(table, false).run();
    } catch (org.apache.paimon.table.source.EndOfScanException empty) {
      return;  // how it says that the table has no files
    }
    BaseAppendFileStoreWrite write = (BaseAppendFileStoreWrite) table.store().newWrite("writer");
    List messages = new ArrayList();
    for (Iterator each = tasks.iterator(); each.hasNext(); ) {
      messages.add(((AppendCompactTask) each.next()).doCompact(table, write));
    }
    commit(table, messages);
    write.close();
  }

  public void dropPartition(FileStoreTable table, String dt) throws Exception {
    Map writeOnly = Collections.singletonMap("write-only", "true");
    TableCommitImpl commit = ((FileStoreTable) table.copy(writeOnly)).newCommit("writer");
    commit.truncatePartitions(Collections.singletonList(Collections.singletonMap("dt", dt)));
    commit.close();
  }

  /** Every row of a snapshot (the newest where it is negative), a tag's or a branch's: [[id, v, dt], ...] in order. */
  public String rows(FileStoreTable table, long snapshot, String tag) throws Exception {
    Map options = new HashMap();
    if (snapshot >= 0) {
      options.put("scan.snapshot-id", String.valueOf(snapshot));
    }
    if (tag != null) {
      options.put("scan.tag-name", tag);
    }
    ReadBuilder read = table.copy(options).newReadBuilder();
    RecordReader reader = read.newRead().executeFilter().createReader(read.newScan().plan());
    CloseableIterator rows = reader.toCloseableIterator();
    List found = new ArrayList();
    while (rows.hasNext()) {
      InternalRow row = (InternalRow) rows.next();
      found.add(row.getLong(0) + " " + row.getString(1) + " " + row.getString(2));
    }
    rows.close();
    Collections.sort(found);
    return JSON.writeValueAsString(found);
  }

  /** The table as it was then, by the options of a reader that travels in time. */
  public FileStoreTable travel(FileStoreTable table, Map options) {
    return (FileStoreTable) table.copy(options);
  }

  public void tag(FileStoreTable table, String name, long snapshot) {
    table.createTag(name, snapshot);
  }

  public void tagFor(FileStoreTable table, String name, long snapshot, long millis) {
    table.createTag(name, snapshot, java.time.Duration.ofMillis(millis));
  }

  public void consumer(FileStoreTable table, String name, long next) {
    new ConsumerManager(table.fileIO(), table.location(), "main").resetConsumer(name, new Consumer(next));
  }

  public void rename(Catalog catalog, String from, String to) throws Exception {
    catalog.renameTable(Identifier.create("db", from), Identifier.create("db", to), false);
  }

  public void alter(Catalog catalog, String name, String option, String value) throws Exception {
    List changes = Collections.singletonList(SchemaChange.setOption(option, value));
    catalog.alterTable(Identifier.create("db", name), changes, false);
  }

  public void rollback(FileStoreTable table, long snapshot) {
    table.rollbackTo(snapshot);
  }

  /** Paimon's own expiry: all but so many snapshots, whatever their age. */
  public int ownExpire(FileStoreTable table, int keep) {
    ExpireConfig config =
        ExpireConfig.builder()
            .snapshotRetainMax(keep)
            .snapshotRetainMin(keep)
            .snapshotTimeRetain(java.time.Duration.ofMillis(1))
            .snapshotMaxDeletes(1000000)
            .build();
    return table.newExpireSnapshots().config(config).expire();
  }

  /** Paimon's own expiry as its writers do it: snapshots and then changelogs, by the table's options. */
  public void ownExpireByOptions(FileStoreTable table) {
    ExpireConfig config = table.coreOptions().expireConfig();
    table.newExpireSnapshots().config(config).expire();
    if (table.coreOptions().changelogLifecycleDecoupled()) {
      table.newExpireChangelog().config(config).expire();
    }
  }

  /** What a streaming reader is told that starts at this snapshot or changelog: every change, in order of snapshots. */
  public String changes(FileStoreTable table, long from) throws Exception {
    Map options = new HashMap();
    options.put("scan.mode", "from-snapshot");
    options.put("scan.snapshot-id", String.valueOf(from));
    ReadBuilder read = table.copy(options).newReadBuilder();
    StreamTableScan scan = read.newStreamScan();
    long latest = table.snapshotManager().latestSnapshotId().longValue();
    List found = new ArrayList();
    do {
      TableScan.Plan plan = scan.plan();
      List told = new ArrayList();
      CloseableIterator rows = read.newRead().createReader(plan).toCloseableIterator();
      while (rows.hasNext()) {
        InternalRow row = (InternalRow) rows.next();
        told.add(row.getRowKind().shortString() + " " + row.getLong(0) + " " + row.getString(1));
      }
      rows.close();
      Collections.sort(told);
      found.addAll(told);
    } while (scan.checkpoint() == null || scan.checkpoint().longValue() <= latest);
    return JSON.writeValueAsString(found);
  }

  /** What Paimon's own cleaning would delete, as paths. */
  public String ownOrphans(FileStoreTable table, long olderThanMillis) throws Exception {
    List paths = new LocalOrphanFilesClean(table, olderThanMillis, true).clean().getDeletedFilesPath();
    List found = new ArrayList();
    for (Iterator each = paths.iterator(); each.hasNext(); ) {
      found.add(each.next().toString());
    }
    return JSON.writeValueAsString(found);
  }
}
